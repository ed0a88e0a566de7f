package usage

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/tree"
)

// Limited reports whether a directory, or one above it, has a quota.
func Limited(v *kvtx.View, dir moraine.InodeID) (bool, error) {
	if some, err := HasQuotas(v); err != nil || !some {
		return false, err
	}
	above, err := tree.Above(v, dir)
	if err != nil {
		return false, err
	}
	for _, id := range above {
		if q, err := Quota(v, id); err != nil || q != (record.Quota{}) {
			return true, err
		}
	}
	return false, nil
}
