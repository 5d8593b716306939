"""The reference pages that are written from the code: one module per subject, each with the text of its pages."""
