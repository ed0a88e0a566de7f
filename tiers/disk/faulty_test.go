package disk_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// medium is one way in which a file system fails.
type medium struct {
	kinds []vfs.OpKind
	err   error // nil: slow
	lies  bool  // drops syncs, and cuts the power before the next Open
}

// TestFaultsOfTheMedium runs random calls on a device whose file system fails in
// one way. It reopens the device after each round.
func TestFaultsOfTheMedium(t *testing.T) {
	for name, m := range map[string]medium{
		"EIO in writes":             {kinds: []vfs.OpKind{vfs.OpWrite}, err: syscall.EIO},
		"EIO in writes, reply lost": {kinds: []vfs.OpKind{vfs.OpWrite}, err: vfs.Afterwards(syscall.EIO)},
		"EIO in syncs":              {kinds: []vfs.OpKind{vfs.OpSync}, err: syscall.EIO},
		"EIO in syncs, reply lost":  {kinds: []vfs.OpKind{vfs.OpSync}, err: vfs.Afterwards(syscall.EIO)},
		"EIO in reads":              {kinds: []vfs.OpKind{vfs.OpRead}, err: syscall.EIO},
		"full":                      {kinds: []vfs.OpKind{vfs.OpWrite, vfs.OpAllocate}, err: syscall.ENOSPC},
		"slow":                      {kinds: []vfs.OpKind{vfs.OpWrite, vfs.OpSync, vfs.OpRead}},
		"lies about syncs":          {kinds: []vfs.OpKind{vfs.OpSync}, err: vfs.Drop, lies: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(4) {
				runMedium(t, m, seed)
			}
		})
	}
}

func runMedium(t *testing.T, m medium, seed uint64) {
	base := vfs.NewMem(seed)
	format(t, base, "/d")
	var armed atomic.Bool
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 5))
	fired := 0
	rule := func(op vfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		hit := false
		for _, k := range m.kinds {
			hit = hit || op.Kind == k
		}
		if !armed.Load() || !hit || (!m.lies && rng.IntN(12) != 0) {
			return nil
		}
		fired++
		if m.err == nil {
			time.Sleep(200 * time.Microsecond)
		}
		return m.err
	}
	var d *disk.Device
	var reopen func(t *testing.T) tiertest.Faulty
	reopen = func(t *testing.T) tiertest.Faulty {
		cut := base
		if m.lies {
			cut = base.Crash(nil)
		}
		if d != nil {
			_ = d.Close() // Close may fail on a device that is out of service
		}
		if m.lies {
			base = cut
		}
		d = open(t, vfs.NewFault(base, rule), config("/d"))
		return tiertest.Faulty{Tier: d, Arm: func() { armed.Store(true) }, Disarm: func() { armed.Store(false) },
			Reopen: reopen, MayForget: m.lies}
	}
	failed := tiertest.RunFaulty(t, seed, reopen)
	require.Positive(t, fired)
	if !m.lies { // after a power cut the device finds some of the lost data corrupt
		require.Equal(t, m.err == nil, failed == 0, "%d calls failed", failed)
	}
}
