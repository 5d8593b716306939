"""Model families: a record for each ``model_type``, with the parameters of its body and of its heads."""
