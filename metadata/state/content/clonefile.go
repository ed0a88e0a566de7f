package content

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/metadata/state/usage"
)

// NewClone makes an inode with the attributes of a file, and without content or name. The caller
// writes it. Then CloneMore shares the content.
func NewClone(t *kvtx.Tx, src *record.Inode, tenant moraine.Tenant) (*record.Inode, error) {
	return like(t, src, tenant)
}

// CloneMore shares the next tables of the file in progress, until the command has stop records. When
// the clone is whole, c is zero. The caller has checked that the source exists. If it changed since
// the last piece, the clone begins anew.
func CloneMore(t *kvtx.Tx, c *record.FileClone, stop int) error {
	return cloneMore(t, &record.Job{}, c, stop)
}

// FitsQuota fails with Quota if a copy of what is below src exceeds a quota of dir or above it.
func FitsQuota(t *kvtx.Tx, dir, src moraine.InodeID) error {
	s, err := usage.UsageState(&t.View)
	if err != nil || s.Live == 0 {
		return err
	}
	below, err := t.UsageNow(kvtx.UsageKey{Column: s.Live, Dir: src})
	if err != nil {
		return err
	}
	below.Steps = 0
	return fits(t, s, dir, below.Add(record.Usage{Inodes: 1}))
}
