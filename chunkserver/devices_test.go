package chunkserver_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/wire"
)

// format makes a device of an empty directory.
func format(t *testing.T, fsys vfs.FS, dir string) {
	t.Helper()
	_, err := disk.Format(fsys, dir, cluster, rand.Reader)
	require.NoError(t, err)
}

// free checks that nothing has a device open, so that another process may open it.
func free(t *testing.T, fsys vfs.FS, dir string) {
	t.Helper()
	d, err := disk.Open(disk.Config{Dir: dir, Cluster: cluster, SegmentBytes: 4 << 20}, disk.Deps{FS: fsys})
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// serves sets the devices of a host.
func (h *host) serves(t *testing.T, dirs ...string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return h.SetDevices(ctx, config(dirs...).Devices)
}

// state sets the state of a device in the metadata service.
func (f *fakeMeta) state(id uint32, to wire.DeviceState, claimed uint64) {
	f.set(func() {
		for _, h := range f.hosts {
			for _, d := range h.Devices {
				if f.ids[moraine.UUID(d.Uuid)] == id {
					d.State, d.Claimed = to, claimed
				}
			}
		}
	})
}

// registered is how many devices the last registration listed.
func (f *fakeMeta) registered() int { return len(f.lastHost().GetDevices()) }

func on(c testChunk, device uint32) testChunk {
	c.req.Device = device
	return c
}

// TestDeviceIsTakenWhileRunning: a device made while the server runs comes into
// service, stores and serves chunks, and is reported. The existing devices
// continue.
func TestDeviceIsTakenWhileRunning(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	first := chunk(1, 70_000)
	_, err := first.put(t, h)
	require.NoError(t, err)

	require.ErrorIs(t, h.serves(t, "/a", "/b"), moraine.NotFound, "it may be a disk that is not mounted")
	require.ErrorIs(t, h.serves(t), moraine.InvalidArgument, "a host without any is a mistake")
	format(t, fsys, "/b")
	for range 2 { // a repeat changes nothing
		require.NoError(t, h.serves(t, "/a", "/b"))
	}
	require.Equal(t, 2, meta.registered())
	second := on(chunk(2, 80_000), 2)
	_, err = second.put(t, h)
	require.NoError(t, err)
	second.check(t, h)
	first.check(t, h)
	h.waitFor(t, func() bool { d := meta.lastBeat(2); return d[1] != nil && d[1].Chunks == 1 })
	h.waitFor(t, func() bool { return len(meta.passes[2]) > 0 })

	// The next start finds both.
	require.NoError(t, h.stop())
	h = start(t, fsys, meta, config("/a", "/b"))
	second.check(t, h)
}

// TestDeviceIsLetGo: a device that is not listed is closed, but only once it is out
// or retired. Drained and empty is not enough, since chunks on it may still be
// committed. After that a request for it is refused, and never answered as if its
// chunks were gone.
func TestDeviceIsLetGo(t *testing.T) {
	for name, tt := range map[string]struct {
		state   wire.DeviceState
		claimed uint64
		may     bool
	}{
		"in":                     {state: wire.DeviceState_DEVICE_STATE_IN},
		"draining":               {state: wire.DeviceState_DEVICE_STATE_DRAINING, claimed: 3},
		"drained":                {state: wire.DeviceState_DEVICE_STATE_DRAINING},
		"out, to be carried":     {state: wire.DeviceState_DEVICE_STATE_OUT, claimed: 3, may: true},
		"retired":                {state: wire.DeviceState_DEVICE_STATE_RETIRED, may: true},
		"of another host now":    {may: true},
		"out, and dropped twice": {state: wire.DeviceState_DEVICE_STATE_OUT, may: true},
	} {
		t.Run(name, func(t *testing.T) {
			fsys, meta := vfs.NewMem(1), newFakeMeta()
			h := start(t, fsys, meta, config("/a", "/b"))
			c := on(chunk(2, 80_000), 2)
			_, err := c.put(t, h)
			require.NoError(t, err)
			meta.state(2, tt.state, tt.claimed)
			err = h.serves(t, "/a")
			if !tt.may {
				require.ErrorIs(t, err, moraine.Conflict)
				require.ErrorContains(t, err, "device set 2 draining")
				require.Equal(t, 2, meta.registered())
				c.check(t, h)
				return
			}
			require.NoError(t, err)
			require.NoError(t, h.serves(t, "/a"))
			require.Equal(t, 1, meta.registered())
			free(t, fsys, "/b")
			_, _, _, err = h.GetChunk(t.Context(), c.get(0, 10))
			require.ErrorIs(t, err, moraine.Unavailable)
			_, err = on(chunk(3, 100), 2).put(t, h)
			require.ErrorIs(t, err, moraine.Unavailable)
			one := chunk(4, 100)
			_, err = one.put(t, h)
			require.NoError(t, err)
			one.check(t, h)
		})
	}
}

// TestDeviceIsReplacedAndCarried: another disk is mounted at a directory, and the
// earlier one continues on another host with its chunks.
func TestDeviceIsReplacedAndCarried(t *testing.T) {
	meta := newFakeMeta()
	cfg := config("/disk1", "/disk2")
	fsys := vfs.NewMem(1)
	h := start(t, fsys, meta, cfg)
	c := on(chunk(2, 80_000), 2)
	_, err := c.put(t, h)
	require.NoError(t, err)
	// The other host already runs with a disk of its own. Both run on the same
	// machine here; only the listed directories differ.
	format(t, fsys, "/disk3")
	other := config("/disk3")
	other.Node = "n2"
	to := start(t, fsys, meta, other)
	require.ErrorIs(t, to.serves(t, "/disk3", "/disk2"), moraine.Busy, "it is still open on the first host")
	meta.state(2, wire.DeviceState_DEVICE_STATE_OUT, 1)
	require.NoError(t, h.serves(t, "/disk1"))
	require.NoError(t, to.serves(t, "/disk3", "/disk2"))
	c.check(t, to)
	// A new disk in its place.
	format(t, fsys, "/disk4")
	require.NoError(t, h.serves(t, "/disk1", "/disk4"))
	d := on(chunk(5, 1000), 4)
	_, err = d.put(t, h)
	require.NoError(t, err)
	d.check(t, h)
}

// TestDevicesChangeThoughRepliesAreLost is the fault table: the registration fails
// a few times, or succeeds while its answer is lost. Meanwhile the host continues
// as before, is not registered without the new devices, and uses the change in the
// end.
func TestDevicesChangeThoughRepliesAreLost(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost=", lost), func(t *testing.T) {
			fsys, meta := vfs.NewMem(1), newFakeMeta()
			h := start(t, fsys, meta, config("/a", "/b"))
			format(t, fsys, "/c")
			meta.state(2, wire.DeviceState_DEVICE_STATE_OUT, 0)
			fails, beats := 0, 0
			meta.set(func() {
				meta.fault = func(req *wire.MetaRequest, done bool) error {
					switch req.Op.(type) {
					case *wire.MetaRequest_RegisterHost:
						if done == lost && fails < 6 {
							fails++
							meta.unknown = true // heartbeats request a registration meanwhile
							return &moraine.Error{Kind: moraine.Unavailable}
						}
					case *wire.MetaRequest_Heartbeat:
						if done {
							beats++
						}
					}
					return nil
				}
			})
			require.NoError(t, h.serves(t, "/a", "/c"))
			require.Equal(t, 2, meta.registered())
			meta.set(func() {
				require.Equal(t, 6, fails)
				require.Greater(t, beats, 3, "heartbeats continued")
			})
			free(t, fsys, "/b")
			c := on(chunk(2, 80_000), 3)
			_, err := c.put(t, h)
			require.NoError(t, err)
			c.check(t, h)
		})
	}
}

// TestDeviceChangesEndWithTheServer: a change that never reaches the metadata
// service ends with the server, and leaves nothing open.
func TestDeviceChangesEndWithTheServer(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	format(t, fsys, "/b")
	meta.set(func() {
		meta.fault = func(req *wire.MetaRequest, _ bool) error {
			if _, ok := req.Op.(*wire.MetaRequest_RegisterHost); ok {
				return &moraine.Error{Kind: moraine.Unavailable}
			}
			return nil
		}
	})
	done := make(chan error, 1)
	go func() { done <- h.SetDevices(t.Context(), config("/a", "/b").Devices) }()
	h.waitFor(t, func() bool { return len(meta.beats) > 5 })
	require.NoError(t, h.stop())
	require.ErrorIs(t, <-done, moraine.Unavailable)
	free(t, fsys, "/a")
	free(t, fsys, "/b")
	require.ErrorIs(t, h.serves(t, "/a"), moraine.Unavailable)
}

// TestRefusedDevicesEndTheChange: a registration that is refused permanently ends the
// change. The host continues as it was. It is registered so, since an earlier
// attempt may have succeeded, and accepts the next change.
func TestRefusedDevicesEndTheChange(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	format(t, fsys, "/b")
	attempts := 0
	meta.set(func() {
		meta.fault = func(req *wire.MetaRequest, done bool) error {
			if r, ok := req.Op.(*wire.MetaRequest_RegisterHost); !ok || len(r.RegisterHost.Host.Devices) < 2 {
				return nil
			}
			if attempts++; !done { // the first attempt succeeds
				if attempts == 1 {
					return nil
				}
				return &moraine.Error{Kind: moraine.InvalidArgument}
			}
			return &moraine.Error{Kind: moraine.Unavailable}
		}
	})
	require.ErrorIs(t, h.serves(t, "/a", "/b"), moraine.InvalidArgument)
	free(t, fsys, "/b")
	h.waitFor(t, func() bool { return len(meta.host.GetDevices()) == 1 })
	meta.set(func() { meta.fault = nil })
	c := chunk(1, 70_000)
	_, err := c.put(t, h)
	require.NoError(t, err)
	require.NoError(t, h.serves(t, "/a", "/b"))
	require.Equal(t, 2, meta.registered())
}

// clone copies a directory with its contents.
func clone(t *testing.T, fsys vfs.FS, from, to string) {
	t.Helper()
	require.NoError(t, fsys.MkdirAll(to))
	names, err := fsys.List(from)
	require.NoError(t, err)
	for _, name := range names {
		info, err := fsys.Stat(from + "/" + name)
		require.NoError(t, err)
		if info.Dir {
			clone(t, fsys, from+"/"+name, to+"/"+name)
			continue
		}
		in, err := fsys.Open(from+"/"+name, vfs.Read)
		require.NoError(t, err)
		out, err := fsys.Open(to+"/"+name, vfs.Create)
		require.NoError(t, err)
		data := make([]byte, info.Size)
		_, err = in.ReadAt(data, 0)
		require.NoError(t, err)
		_, err = out.WriteAt(data, 0)
		require.NoError(t, err)
		require.NoError(t, in.Close())
		require.NoError(t, out.Close())
	}
}

// TestCopiedDevicesAreNotBothTaken: of a disk and a copy of it, the server takes
// one, and the error names the other.
func TestCopiedDevicesAreNotBothTaken(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	format(t, fsys, "/b")
	clone(t, fsys, "/b", "/c")
	err := h.serves(t, "/a", "/b", "/c")
	require.ErrorIs(t, err, moraine.Conflict)
	require.ErrorContains(t, err, "/c")
	require.ErrorContains(t, err, "/b")
	require.Equal(t, 2, meta.registered())
	c := on(chunk(1, 70_000), 2)
	_, err = c.put(t, h)
	require.NoError(t, err)
	c.check(t, h)
}

// TestNewDeviceDoesNotWaitForOneThatHangs: a disk that is being replaced hangs
// while it is dropped. The new device is added nevertheless. The error names the
// one that hangs, which is closed when it answers.
func TestNewDeviceDoesNotWaitForOneThatHangs(t *testing.T) {
	mem := vfs.NewMem(1)
	fsys, hangs, answers := hangsAtClose(mem, "/b/")
	meta := newFakeMeta()
	h := start(t, fsys, meta, config("/a", "/b"))
	defer func() { require.NoError(t, h.stop()) }()
	h.SetCloseWait(20 * time.Millisecond)
	meta.state(2, wire.DeviceState_DEVICE_STATE_OUT, 0)
	format(t, mem, "/c")
	hangs.Store(true)
	err := h.serves(t, "/a", "/c")
	require.ErrorIs(t, err, moraine.Busy)
	require.ErrorContains(t, err, "/b")
	c := on(chunk(2, 80_000), 3)
	_, err = c.put(t, h)
	require.NoError(t, err, "the new one is taken")
	format(t, mem, "/d")
	require.NoError(t, h.serves(t, "/a", "/c", "/d"), "and more after it")
	hangs.Store(false)
	close(answers)
	closesAtLast(t, mem, "/b")
}

// hangsAtClose returns fsys, in which the close of a file below prefix waits, while
// hangs is set, until answers is closed.
func hangsAtClose(fsys vfs.FS, prefix string) (out vfs.FS, hangs *atomic.Bool, answers chan struct{}) {
	hangs, answers = &atomic.Bool{}, make(chan struct{})
	return vfs.NewFault(fsys, func(op vfs.Op) error {
		if op.Kind == vfs.OpClose && hangs.Load() && strings.HasPrefix(op.Path, prefix) {
			<-answers
		}
		return nil
	}), hangs, answers
}

// closesAtLast waits until nothing has the device in dir open.
func closesAtLast(t *testing.T, fsys vfs.FS, dir string) {
	t.Helper()
	require.Eventually(t, func() bool {
		d, err := disk.Open(disk.Config{Dir: dir, Cluster: cluster, SegmentBytes: 4 << 20}, disk.Deps{FS: fsys})
		return err == nil && d.Close() == nil
	}, time.Minute, 5*time.Millisecond)
}

// TestLostRegistrationDoesNotSilenceTheHost: the answer to a registration with new
// devices is lost. Heartbeats continue, and the host retries the registration.
func TestLostRegistrationDoesNotSilenceTheHost(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	format(t, fsys, "/b")
	meta.set(func() { meta.lost = 2 })
	require.NoError(t, h.serves(t, "/a", "/b"))
	require.Equal(t, 2, meta.registered())
	meta.set(func() {
		require.Zero(t, meta.lost)
		require.NotZero(t, meta.beatsAfterLoss)
	})
}
