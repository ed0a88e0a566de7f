package ckpt

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/morainefs/moraine/internal/adopted"
	"github.com/morainefs/moraine/internal/pickle"
)

// dcpLimits bound the metadata of a checkpoint that is adopted. They are enough for some 300,000
// slices.
var dcpLimits = pickle.Limits{Bytes: 64 << 20, Values: 2 << 20}

// checkDCP checks that each file that .metadata lists has the bytes that it lists.
func (s *adoptedStep) checkDCP(ctx context.Context) error {
	b, ok, err := s.read(ctx, adopted.DCPMetadata, int64(dcpLimits.Bytes))
	switch {
	case err != nil:
		return err
	case !ok:
		return verdict("there is no %s: the checkpoint is not complete", adopted.DCPMetadata)
	}
	sizes, err := dcpSizes(b)
	if err != nil {
		return verdict("file %s: %v", adopted.DCPMetadata, err)
	}
	for path, size := range sizes {
		if err := s.needs(path, size, adopted.DCPMetadata); err != nil {
			return err
		}
	}
	return nil
}

// dcpSizes returns how many bytes each file needs, from the pickle of a Metadata of
// torch.distributed.checkpoint: its storage_data has a path, an offset and a length for each slice.
func dcpSizes(b []byte) (map[string]int64, error) {
	v, err := pickle.Parse(b, dcpLimits)
	if err != nil {
		return nil, err
	}
	root, ok := v.(*pickle.Object)
	if !ok || !isMetadata(root) || root.Fields() == nil {
		return nil, fmt.Errorf("the pickle has no Metadata of torch.distributed.checkpoint")
	}
	v, _ = root.Fields().Get("storage_data")
	storage, ok := v.(*pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("it has no storage_data, which says where the slices are")
	}
	sizes := map[string]int64{}
	for n, v := range storage.Values {
		path, end, err := storageInfo(v)
		if err != nil {
			return nil, fmt.Errorf("item %d of storage_data: %w", n, err)
		}
		sizes[path] = max(sizes[path], end)
	}
	return sizes, nil
}

// isMetadata reports whether an object is of the class Metadata of torch.distributed.checkpoint.
func isMetadata(o *pickle.Object) bool {
	class, ok := o.Class.(pickle.Global)
	if ok && class.Name == "_reconstructor" && len(o.Args) > 0 { // of protocol 0 and 1
		class, ok = o.Args[0].(pickle.Global)
	}
	return ok && class.Name == "Metadata" && strings.HasPrefix(class.Module, "torch.distributed.checkpoint")
}

// storageInfo returns the file of one slice, and where the slice ends in it.
func storageInfo(v any) (path string, end int64, err error) {
	o, ok := v.(*pickle.Object)
	if !ok || o.Fields() == nil {
		return "", 0, fmt.Errorf("it is a %T", v)
	}
	p, _ := o.Fields().Get("relative_path")
	off, _ := o.Fields().Get("offset")
	n, _ := o.Fields().Get("length")
	path, ok = p.(string)
	offset, ok2 := off.(int64)
	length, ok3 := n.(int64)
	if !ok || !ok2 || !ok3 || offset < 0 || length < 0 || offset > math.MaxInt64-length {
		return "", 0, fmt.Errorf("it has no valid path, offset and length: %T, %T, %T", p, off, n)
	}
	return path, offset + length, nil
}
