package metadata_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/transport/wire"
)

// spaceOf waits until the leader considers these servers' disks nearly full.
func spaceOf(t *testing.T, k *caller, full ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		resp, err := k.do(&wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
		if err != nil {
			return false
		}
		var have []string
		for _, m := range resp.GetCluster().Metadata {
			if m.LowSpace {
				have = append(have, m.Id)
			}
		}
		return fmt.Sprint(have) == fmt.Sprint(full)
	}, 30*time.Second, 50*time.Millisecond, "%v", full)
}

// crampedDisk reports, while it is full, that a thousandth of it is free.
type crampedDisk struct {
	vfs.FS
	full atomic.Bool
}

func (d *crampedDisk) Usage(path string) (vfs.Usage, error) {
	if d.full.Load() {
		return vfs.Usage{Total: 1 << 40, Free: 1 << 30}, nil
	}
	return d.FS.Usage(path)
}

// The namespace may grow while a majority of disks has room. One nearly full follower changes
// nothing; two stop growth although the leader has room. Requests that free space are accepted
// throughout.
func TestGrowthIsUpToAMajorityOfDisks(t *testing.T) {
	disks := map[string]*crampedDisk{}
	for i := range 3 {
		disks[fmt.Sprintf("m%d", i+1)] = &crampedDisk{FS: vfs.NewMem(uint64(i))}
	}
	c := newPatientRaftCluster(t, 3, steady, func(name string) (vfs.FS, string) { return disks[name], "/node" })
	k := c.caller("c1")
	k.open()
	_, err := k.mutate(mkdir(root, "a"))
	require.NoError(t, err)
	leader := c.leader()
	var rest []string
	for _, name := range c.names {
		if name != leader {
			rest = append(rest, name)
		}
	}
	disks[rest[0]].full.Store(true)
	spaceOf(t, k, rest[0])
	_, err = k.mutate(mkdir(root, "b"))
	require.NoError(t, err, "two of three have room")

	disks[rest[1]].full.Store(true)
	spaceOf(t, k, rest...)
	require.Equal(t, leader, c.leader())
	_, err = k.mutate(mkdir(root, "c"))
	require.ErrorIs(t, err, moraine.NoSpace, "the leader has room, and no majority")
	_, err = k.mutate(&wire.MetaRequest{Op: &wire.MetaRequest_Remove{Remove: &wire.Remove{Parent: root, Name: "a", Directory: true}}})
	require.NoError(t, err)

	disks[rest[0]].full.Store(false)
	spaceOf(t, k, rest[1])
	_, err = k.mutate(mkdir(root, "c"))
	require.NoError(t, err)
}
