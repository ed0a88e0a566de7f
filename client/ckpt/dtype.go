package ckpt

import "github.com/morainefs/moraine/client/ckpt/safetensors"

// DType is the type of a tensor's elements.
type DType = safetensors.DType

// The types of elements, with the names of the safetensors format. The rare ones (C64, F8E8M0, F8E4M3FNUZ,
// F8E5M2FNUZ) are in package safetensors.
const (
	F64    = safetensors.F64
	F32    = safetensors.F32
	F16    = safetensors.F16
	BF16   = safetensors.BF16
	I64    = safetensors.I64
	I32    = safetensors.I32
	I16    = safetensors.I16
	I8     = safetensors.I8
	U64    = safetensors.U64
	U32    = safetensors.U32
	U16    = safetensors.U16
	U8     = safetensors.U8
	Bool   = safetensors.Bool
	F8E4M3 = safetensors.F8E4M3
	F8E5M2 = safetensors.F8E5M2
)
