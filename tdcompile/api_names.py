"""Public names of the ``tensordict`` package 0.15.3, for the coverage command: names and no more.

Key names: :data:`SECTIONS` (a class or module of the reference, and its public names),
:data:`LATER` (patterns of names that are left out for now).

Invariant: a class that inherits from another one lists only what it adds to it.
"""

from __future__ import annotations

__all__ = ["LATER", "SECTIONS"]

_FORMATS = ("h5", "zarr", "parquet", "csv", "pandas", "json", "arrow")

SECTIONS: dict[str, tuple[str, ...]] = {
    section: tuple(names.split())
    for section, names in {
        "TensorDict": """
        abs abs_ acos acos_ add add_ addcdiv addcdiv_ addcmul addcmul_ all all_gather
        all_reduce amax amin any apply apply_ arecv as_tensor asend asin asin_ atan atan_
        atleast_1d atleast_2d atleast_3d attrs auto_batch_size_ auto_device_ backward
        batch_dims batch_size bfloat16 bitwise_and bool broadcast broadcast_to bytes cat
        cat_from_tensordict cat_tensors ceil ceil_ chunk clamp clamp_max clamp_max_
        clamp_min clamp_min_ clear clear_device_ clear_refs_for_compile_ clone complex128
        complex32 complex64 consolidate contiguous copy copy_ copy_at_ cos cos_ cosh cosh_
        cpu create_nested cuda cummax cummin data data_ptr del_ densify depth detach detach_
        device dim div div_ double dtype dumps empty entry_class erf erf_ erfc erfc_ exclude
        exp exp_ expand expand_as expm1 expm1_ fill_ filter_empty_ filter_non_tensor_data
        flatten flatten_keys flip fliplr flipud float float16 float32 float64 floor floor_
        frac frac_ from_any from_consolidated from_csv from_dataclass from_dict
        from_dict_instance from_h5 from_json from_list from_module from_modules
        from_namedtuple from_pandas from_parquet from_pytree from_remote_init from_schema
        from_struct_array from_tuple from_zarr fromkeys gather gather_and_stack get get_at
        get_item_shape get_non_tensor grad half init_remote int int16 int32 int64 int8 irecv
        is_consolidated is_contiguous is_cpu is_cuda is_empty is_floating_point is_locked
        is_memmap is_meta is_non_tensor is_shared isend isfinite isnan isneginf isposinf
        isreal items keys lazy_stack lerp lerp_ lgamma lgamma_ load load_ load_memmap
        load_memmap_ load_state_dict lock_ log log10 log10_ log1p log1p_ log2 log2_ log_
        logical_and logsumexp make_memmap make_memmap_from_storage make_memmap_from_tensor
        map map_iter masked_fill masked_fill_ masked_select max maximum maximum_
        maybe_dense_stack mean memmap memmap_ memmap_like memmap_refresh_ min minimum
        minimum_ mod moveaxis movedim mul mul_ named_apply names nanmean nansum narrow ndim
        ndimension neg neg_ new_empty new_full new_ones new_tensor new_zeros
        non_tensor_items norm numel numpy pack pad param_count permute pin_memory
        pin_memory_ pop popitem pow pow_ prod qint32 qint8 quantile quint4x2 quint8
        reciprocal reciprocal_ record_stream recv reduce refine_names rename rename_
        rename_key_ rename_keys repeat repeat_interleave replace requires_grad
        requires_grad_ reshape roll rot90 round round_ rsub save saved_path scatter select
        send separates set set_ set_at_ set_non_tensor setdefault shape share_memory_
        sigmoid sigmoid_ sign sign_ sin sin_ sinh sinh_ size softmax sorted_keys split
        split_keys sqrt sqrt_ squeeze stack stack_from_tensordict stack_tensors state_dict
        std sub sub_ sum swapaxes swapdims tan tan_ tanh tanh_ tensor_split tile to to_csv
        to_dict to_h5 to_json to_lazystack to_mds to_module to_namedtuple to_padded_tensor
        to_pandas to_parquet to_pytree to_store to_struct_array to_tensordict to_zarr tolist
        transpose trunc trunc_ type uint16 uint32 uint64 uint8 unbind unflatten
        unflatten_keys unlock_ unsqueeze update update_ update_at_ values var view where
        zero_ zero_grad __abs__ __add__ __and__ __bool__ __class_getitem__ __contains__
        __copy__ __deepcopy__ __delitem__ __enter__ __exit__ __getitem__ __getitems__
        __iadd__ __imul__ __invert__ __ipow__ __isub__ __iter__ __itruediv__ __len__ __mod__
        __mul__ __neg__ __or__ __pow__ __radd__ __rand__ __reversed__ __rmul__ __ror__
        __rpow__ __rsub__ __rtruediv__ __rxor__ __setitem__ __setstate__ __sub__
        __torch_function__ __truediv__ __xor__
        """,
        "LazyStackedTensorDict": """
        append extend get_nestedtensor hook_in hook_out insert valid_keys
        """,
        "TensorDictParams": """
        T_destination add_module buffers call_super_init children compile dump_patches eval
        extra_repr forward get_buffer get_extra_state get_parameter get_submodule ipu
        modules mtia named_buffers named_children named_modules named_parameters parameters
        register_backward_hook register_buffer register_forward_hook
        register_forward_pre_hook register_full_backward_hook
        register_full_backward_pre_hook register_get_post_hook
        register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module
        register_parameter register_state_dict_post_hook register_state_dict_pre_hook
        set_extra_state set_submodule share_memory to_empty train xpu
        """,
        "NonTensorData": """
        extend fields from_tensordict maybe_to_stack
        """,
        "NonTensorStack": """
        append extend from_nontensordata get_nestedtensor hook_in hook_out insert
        maybe_to_stack valid_keys
        """,
        "package level": """
        KEY_SEPARATOR LazyStackedTensorDict LazyStackedTensorDictStore MemoryMappedTensor
        MetaData NestedKey NonTensorData NonTensorDataBase NonTensorStack PackLayout
        PersistentTensorDict TensorAttrs TensorClass TensorClassModuleBase
        TensorClassModuleWrapper TensorCollection TensorDict TensorDictBase TensorDictParams
        TensorDictStore TypedTensorDict UnbatchedTensor append_memmap as_tensordict_module
        assert_allclose_td assert_close base capture_non_tensor_stack cat collate
        default_is_leaf dense_stack_tds from_any from_arrow from_consolidated from_csv
        from_dataclass from_dict from_h5 from_json from_module from_modules from_namedtuple
        from_pandas from_parquet from_pytree from_safetensors from_struct_array from_tuple
        from_zarr fromkeys functional get_defaults_to_none get_printoptions group_by is_bool
        is_floating is_inexact is_integer is_leaf_nontensor is_memmap_archive is_non_tensor
        is_tensor_collection is_tensorclass lazy_legacy lazy_stack list_to_stack load
        load_memmap make_tensordict maybe_dense_stack memmap merge_tensordicts nn
        pack_memmap pad pad_sequence parse_tensor_dict_string persistent
        refresh_archive_checksums save set_capture_non_tensor_stack set_get_defaults_to_none
        set_lazy_legacy set_list_to_stack set_printoptions stack store tensorclass
        tensordict to_arrow to_safetensors typedtensordict unpack_memmap unpad_sequence
        unravel_key unravel_key_list unravel_key_to_tuple utils
        """,
        "nn": """
        AddStateIndependentNormalScale CompositeDistribution CudaGraphModule EnsembleModule
        InteractionType NormalParamExtractor OneHotCategorical ProbabilisticTensorDictModule
        ProbabilisticTensorDictSequential TensorClassModuleBase TensorClassModuleWrapper
        TensorDictModule TensorDictModuleBase TensorDictModuleWrapper TensorDictParams
        TensorDictSequential TruncatedNormal WrapModule add_custom_mapping
        as_tensordict_module biased_softplus common composite_lp_aggregate cudagraphs
        dispatch distributions ensemble functional_modules interaction_type inv_softplus
        make_tensordict mappings params probabilistic rand_one_hot sequence
        set_composite_lp_aggregate set_interaction_type set_skip_existing skip_existing
        tensorclass_module utils
        """,
        "nn.TensorDictModule": """
        device in_keys is_functional is_tdmodule_compatible out_keys out_keys_source
        reset_out_keys reset_parameters_recursive select_out_keys
        """,
        "nn.TensorDictSequential": """
        device in_keys is_functional is_tdmodule_compatible out_keys out_keys_source
        reset_out_keys reset_parameters_recursive select_out_keys select_subsequence
        """,
        "nn.ProbabilisticTensorDictModule": """
        build_dist_from_params dist_params_keys dist_sample_keys get_dist in_keys
        is_tdmodule_compatible log_prob log_prob_key log_prob_keys out_keys out_keys_source
        reset_out_keys reset_parameters_recursive select_out_keys
        """,
        "nn.EnsembleModule": """
        in_keys is_tdmodule_compatible out_keys out_keys_source reset_out_keys
        reset_parameters_recursive select_out_keys
        """,
    }.items()
}
"""Class (or module) of the reference to its public names."""

LATER: tuple[str, ...] = (
    *(f"{way}_{form}" for way in ("to", "from") for form in _FORMATS),
    "to_mds",
    "to_store",
    "PersistentTensorDict",
    "persistent",
    "*Store",
    "store",
    "nn",
    "nn.*",
)
"""Shell patterns of names, or of whole sections, that are left out for now."""
