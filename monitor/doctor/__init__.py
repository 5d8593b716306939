"""What a bug report needs to know of this machine, without secrets and without names of people or hosts."""
