package ckpt

import (
	"fmt"
	"slices"

	"github.com/morainefs/moraine/client/ckpt/agentproto"
	"github.com/morainefs/moraine/client/ckpt/safetensors"
)

// CheckSeal fails with InvalidArgument if no part can have what a seal names: it checks names, types, places of
// slices, lengths and numbers. It reads no bytes, and adds nothing. It is for agents, which accept a part before they
// write it.
func (r *Run) CheckSeal(seal *agentproto.Seal) error {
	if err := checkSeal(seal); err != nil {
		return invalid("agent.Seal", fmt.Sprintf("%s step %d", r.path, seal.Step), err)
	}
	return nil
}

func checkSeal(seal *agentproto.Seal) error {
	slicesOf := map[string][]Tensor{}
	files := 1
	for i := range seal.Tensors {
		t := &seal.Tensors[i]
		dtype, err := safetensors.ParseDType(t.DType)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		n := Tensor{Name: t.Name, DType: dtype, Shape: t.Shape, Global: t.Global, Offset: t.Offset}
		if err := n.normalizeOf(t.Bytes); err != nil {
			return err
		}
		same := append(slicesOf[t.Name], n)
		if same[0].DType != n.DType || !slices.Equal(same[0].Global, n.Global) {
			return fmt.Errorf("tensor %q is %s of shape %v, and %s of shape %v", t.Name, same[0].DType, same[0].Global, n.DType, n.Global)
		}
		if len(same) > MaxFiles {
			return tooManySlices(t.Name)
		}
		slicesOf[t.Name], files = same, max(files, len(same))
	}
	names := make([]string, 0, len(seal.Blobs))
	for _, b := range seal.Blobs {
		if err := checkBlob(b.Name, names); err != nil {
			return err
		}
		names = append(names, b.Name)
	}
	return checkFiles(files + len(names))
}

func tooManySlices(name string) error {
	return fmt.Errorf("tensor %q has %d slices on this rank already", name, MaxFiles)
}

// checkBlob fails unless a part that has blobs of the other names may have one of this.
func checkBlob(name string, others []string) error {
	if !blobName.MatchString(name) || len(others) == MaxFiles-1 {
		return fmt.Errorf("blob %q: letters, digits, '.', '_' and '-', 100 at most; %d blobs at most", name, MaxFiles-1)
	}
	if slices.Contains(others, name) {
		return fmt.Errorf("blob %q is there already", name)
	}
	return nil
}

// checkFiles fails if a part has too many files.
func checkFiles(n int) error {
	if n > MaxFiles {
		return fmt.Errorf("the part has %d files; %d at most", n, MaxFiles)
	}
	return nil
}
