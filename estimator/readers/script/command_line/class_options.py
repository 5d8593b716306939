# ruff: noqa: SIM905 - a list of two hundred strings is no easier to read
"""Names of the options that parsers make of library classes, by which argparse tells what an abbreviation stands for.

They are those of all versions together: what is unique among them is unique in each version that has it.
Source: transformers 4.30 to 5.23 (``TrainingArguments``, ``Seq2SeqTrainingArguments``), TRL 1.16 (its configurations).
"""

_TRAINER = frozenset(
    """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adafactor adam_beta1 adam_beta2
    adam_epsilon auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval data_seed
    dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers
    ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed disable_tqdm
    dispatch_batches do_eval do_predict do_train enable_jit_checkpoint eval_accumulation_steps eval_delay
    eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object evaluation_strategy fp16
    fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_config fsdp_min_num_params
    fsdp_transformer_layer_cls_to_wrap full_determinism generation_config generation_max_length generation_num_beams
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs greater_is_better
    group_by_length half_precision_backend hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy
    hub_token ignore_data_skip include_for_metrics include_inputs_for_metrics include_num_input_tokens_seen
    include_tokens_per_second jit_mode_eval label_names label_smoothing_factor learning_rate length_column_name
    liger_kernel_config load_best_model_at_end local_rank log_level log_level_replica log_on_each_node logging_dir
    logging_first_step logging_nan_inf_filter logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type
    max_grad_norm max_steps metric_for_best_model mp_parameters neftune_noise_alpha no_cuda num_train_epochs optim
    optim_args optim_target_modules output_dir overwrite_output_dir parallelism_config past_index
    per_device_eval_batch_size per_device_train_batch_size per_gpu_eval_batch_size per_gpu_train_batch_size
    predict_with_generate prediction_loss_only project push_to_hub push_to_hub_model_id push_to_hub_organization
    push_to_hub_token ray_scope remove_unused_columns report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint run_name save_on_each_node save_only_model save_safetensors save_steps save_strategy
    save_total_limit seed sharded_ddp skip_memory_metrics sortish_sampler split_batches tf32 torch_compile
    torch_compile_backend torch_compile_mode torch_dtype torch_empty_cache_steps torchdynamo tpu_metrics_debug
    tpu_num_cores trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy use_cache
    use_cpu use_ipex use_legacy_prediction_loop use_liger_kernel use_mps_device warmup_ratio warmup_steps
    weight_decay xpu_backend
    """.split()
)
_TRL = frozenset(
    """
    activation_offloading add_tail_bucket alpha assistant_only_loss attn_implementation beta beta1 beta2
    bnb_4bit_quant_storage bnb_4bit_quant_type cache_implementation callbacks cast_lm_head_to_fp32
    center_rewards_coefficient chat_template_kwargs chat_template_path columns completion_only_loss cpo_alpha
    data_dir data_files dataset_config dataset_kwargs dataset_name dataset_num_proc dataset_streaming
    dataset_test_split dataset_text_field dataset_train_split datasets delta desirable_weight
    diagnostics_flat_tolerance diagnostics_warning_interval disable_dropout discopop_tau distillation_add_tail
    distillation_alpha distillation_is_clip distillation_mode distillation_objective distillation_topk
    distillation_weight dont_reprompt_on_self_success ds3_gather_for_generation dtype entropy_coef
    entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target environment_feedback_only_without_solution
    eos_token epsilon epsilon_high eval_packing f_alpha_divergence_coef f_divergence_type feedback_template
    filter_all_incorrect fork_threshold_tokens fraction generate_during_eval generate_from_teacher
    generation_batch_size generation_kwargs heartbeat_stale_after_s ignore_bias_buffers importance_sampling_level
    include_environment_feedback is_encoder_decoder iw_opd_epsilon iw_opd_gamma label_smoothing ld_alpha lmbda
    load_in_4bit load_in_8bit log_completions log_completions_hub_repo log_completions_steps log_multimodal
    log_unique_prompts lora_alpha lora_dropout lora_modules_to_save lora_r lora_target_modules
    lora_target_parameters lora_task_type loss_add_tail loss_top_k loss_type loss_weights mask_truncated_completions
    max_completion_length max_inflight_tasks max_length max_new_tokens max_prompt_length max_reprompt_len
    max_seq_length max_staleness max_tool_calling_iterations min_p missing_eos_penalty model_init_kwargs
    model_name_or_path model_revision multi_objective_aggregation name normalize_advantages num_completions_to_print
    num_generations num_generations_eval num_iterations num_loss_tokens_to_skip num_value_samples
    off_policy_mask_threshold packing packing_strategy pad_to_multiple_of pad_token padding_free padding_value path
    precompute_ref_batch_size precompute_ref_log_probs queue_maxsize ref_model_mixup_alpha ref_model_sync_steps
    remove_thinking_from_demonstration repetition_penalty reprompt_template request_timeout reverse_kl_top_1_mode
    reward_clip_range reward_model_path reward_weights router_aux_loss_coef sapo_temperature_neg
    sapo_temperature_pos scale_rewards seq_kd shuffle_dataset simpo_gamma solution_template split
    steps_per_generation streaming success_reward_threshold sync_ref_model teacher_model_init_kwargs
    teacher_model_kind teacher_model_name_or_path teacher_model_revision teacher_model_server_url
    teacher_prompt_template teacher_server_urls teacher_sync_steps teacher_temperature
    teacher_tokenizer_name_or_path teacher_top_k teacher_update_rate temperature test_split_size token_budget
    top_entropy_quantile top_k top_p tpo_alpha tpo_l_gamma transformers_continuous_batching_config truncation_mode
    trust_remote_code uld_crossentropy_weight uld_distillation_weight uld_hybrid_matched_weight
    uld_hybrid_unmatched_weight uld_skip_student_eos uld_skip_teacher_eos uld_student_temperature
    uld_teacher_temperature uld_token_merge_strategy uld_use_hybrid_loss undesirable_weight use_adaptive_entropy
    use_bias_correction_kl use_bnb_nested_quant use_dora use_extended_uld use_peft use_rslora
    use_successful_as_teacher use_teacher_server use_transformers_continuous_batching use_transformers_paged
    use_uld_loss use_vllm use_weighting vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos
    vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_importance_sampling_cap
    vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_correction
    vllm_importance_sampling_mode vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url
    vllm_server_host vllm_server_port vllm_server_timeout vllm_structured_outputs_regex vllm_sync_frequency
    vllm_tensor_parallel_size wandb_log_unique_prompts weight_sync_steps weight_sync_timeout
    """.split()
)
MEMORY_ARGUMENTS = frozenset(
    """
    per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing activation_checkpointing
    max_length max_seq_length max_completion_length model_name_or_path attn_implementation dtype torch_dtype
    fp16 bf16 optim deepspeed fsdp fsdp_config use_liger_kernel use_peft lora_r lora_target_modules
    lora_modules_to_save load_in_4bit load_in_8bit num_generations use_vllm vllm_gpu_memory_utilization vllm_mode
    precompute_ref_log_probs use_dora teacher_model_name_or_path reward_model_path auto_find_batch_size
    """.split()
)
"""Options that decide the memory."""


def options_of_class(name: str) -> frozenset[str]:
    """Return the options of a library's class: ``TrainingArguments``, ``SFTConfig``, ``ModelConfig``."""
    if name.endswith("TrainingArguments"):
        return _TRAINER
    return _TRAINER | _TRL if name.endswith("Config") or name == "ScriptArguments" else frozenset()
