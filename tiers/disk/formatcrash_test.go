package disk_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/tiers/tiertest"
)

// formatThroughCrash cuts the power at a random call of Format, or after it, and
// formats the result again. A device that opens must result.
func formatThroughCrash(seed uint64, drop func() bool) error {
	rng := rand.New(rand.NewPCG(seed, 3))
	mem := vfs.NewMem(seed)
	if err := errors.Join(mem.MkdirAll("/host"), mem.SyncDir("/")); err != nil {
		return err
	}
	calls, stopAt := 0, rng.IntN(16)
	var left *vfs.Mem
	fsys := vfs.NewFault(mem, func(op vfs.Op) error {
		if calls++; calls == stopAt {
			left = mem.Crash(rng)
		}
		if (op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir) && drop() {
			if rng.IntN(2) == 0 && left == nil { // as long as no other sync made it durable
				stopAt = calls + 1 + rng.IntN(5)
			}
			return vfs.Drop
		}
		return nil
	})
	id, err := disk.Format(fsys, "/host/device", tiertest.Cluster, random(seed))
	if err != nil {
		return err
	}
	done := left == nil
	if done {
		left = mem.Crash(rng)
	}
	if !done {
		// The directory already holds a device, or becomes one.
		if _, err := disk.ReadIdentity(left, "/host/device"); err != nil {
			if _, err := disk.Format(left, "/host/device", tiertest.Cluster, random(seed+1)); err != nil {
				return fmt.Errorf("format what is left: %w", err)
			}
		}
	}
	d, err := disk.Open(config("/host/device"), disk.Deps{FS: left})
	if err != nil {
		return fmt.Errorf("open what is left: %w", err)
	}
	if done && d.Identity() != id {
		return fmt.Errorf("formatted as %v, opened as %v", id, d.Identity())
	}
	return d.Close()
}

func TestFormatSurvivesACrashAtAnyCall(t *testing.T) {
	for seed := range uint64(200) {
		if err := formatThroughCrash(seed, func() bool { return false }); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func TestEverySyncOfFormatIsNeeded(t *testing.T) {
	sites := map[string]bool{}
	for seed := range uint64(10) {
		if err := formatThroughCrash(seed, func() bool { sites[site()] = true; return false }); err != nil {
			t.Fatal(err)
		}
	}
	if len(sites) != 4 {
		t.Fatalf("%d statements sync: %v", len(sites), sites)
	}
	for s := range sites {
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(4000) {
				if err := formatThroughCrash(seed, func() bool { return site() == s }); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("nobody misses it")
		})
	}
}
