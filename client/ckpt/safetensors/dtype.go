package safetensors

import (
	"errors"
	"fmt"
	"slices"
)

// ErrDType is wrapped by errors about a type of elements that this package does not know, or does not
// support. The file may be right all the same.
var ErrDType = errors.New("unsupported type of elements")

// DType is the type of the elements of a tensor. Checkpoint indexes store the numbers: append
// only, never renumber.
type DType uint8

// The types of the format whose elements are whole bytes.
const (
	F64 DType = iota + 1
	F32
	F16
	BF16
	I64
	I32
	I16
	I8
	U64
	U32
	U16
	U8
	Bool
	F8E4M3
	F8E5M2
	C64 // complex: two F32
	F8E8M0
	F8E4M3FNUZ
	F8E5M2FNUZ
	dtypes
)

var dtypeTable = [dtypes]struct {
	name string
	size int
}{
	F64: {"F64", 8}, F32: {"F32", 4}, F16: {"F16", 2}, BF16: {"BF16", 2},
	I64: {"I64", 8}, I32: {"I32", 4}, I16: {"I16", 2}, I8: {"I8", 1},
	U64: {"U64", 8}, U32: {"U32", 4}, U16: {"U16", 2}, U8: {"U8", 1},
	Bool: {"BOOL", 1}, F8E4M3: {"F8_E4M3", 1}, F8E5M2: {"F8_E5M2", 1},
	C64: {"C64", 8}, F8E8M0: {"F8_E8M0", 1}, F8E4M3FNUZ: {"F8_E4M3FNUZ", 1}, F8E5M2FNUZ: {"F8_E5M2FNUZ", 1},
}

// subByte are the types of the format whose elements are parts of bytes.
var subByte = []string{"F4", "F6_E2M3", "F6_E3M2"}

// Size returns the bytes of one element, or 0 for an unknown type.
func (d DType) Size() int {
	if d < dtypes {
		return dtypeTable[d].size
	}
	return 0
}

// String returns the name that the format uses.
func (d DType) String() string {
	if d.Size() == 0 {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypeTable[d].name
}

// ParseDType reads the name that the format uses. Its error wraps ErrDType.
func ParseDType(s string) (DType, error) {
	for d := F64; d < dtypes; d++ {
		if dtypeTable[d].name == s {
			return d, nil
		}
	}
	if slices.Contains(subByte, s) {
		return 0, fmt.Errorf("%w: type %s is not supported yet, its elements are parts of bytes; store the tensor packed, as U8", ErrDType, s)
	}
	return 0, fmt.Errorf("%w: unknown type %q", ErrDType, s)
}
