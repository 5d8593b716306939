"""The command line of a script: the options that it declares, by whichever library, and their values.

Lives here: argparse, HfArgumentParser, click, typer, fire, tyro, absl.
"""
