package chunkserver_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/tiers/disk"
	"github.com/morainefs/moraine/transport/wire"
)

// beatsNow is the number of heartbeats so far.
func (f *fakeMeta) beatsNow() (n int) {
	f.set(func() { n = len(f.beats) })
	return n
}

// refuses makes the metadata service permanently refuse registrations that list the
// device in dir.
func (f *fakeMeta) refuses(t *testing.T, fsys vfs.FS, dir string) {
	t.Helper()
	identity, err := disk.ReadIdentity(fsys, dir)
	require.NoError(t, err)
	f.set(func() {
		f.fault = func(req *wire.MetaRequest, done bool) error {
			r, ok := req.Op.(*wire.MetaRequest_RegisterHost)
			if !ok || done {
				return nil
			}
			for _, d := range r.RegisterHost.Host.Devices {
				if bytes.Equal(d.Uuid, identity.Device[:]) {
					return &moraine.Error{Kind: moraine.InvalidArgument}
				}
			}
			return nil
		}
	})
}

// whenRefused sets a function that is called when the metadata service refuses a
// registration.
func (f *fakeMeta) whenRefused(then func()) {
	f.set(func() {
		fault := f.fault
		f.fault = func(req *wire.MetaRequest, done bool) error {
			err := fault(req, done)
			if err != nil {
				then()
			}
			return err
		}
	})
}

// TestOneRefusedDeviceLeavesTheOthers: a change adds two devices and drops one, and
// the metadata service refuses one. The error names that one, and the rest of the
// change is made.
func TestOneRefusedDeviceLeavesTheOthers(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, fsys, meta, config("/a", "/b"))
	meta.state(2, wire.DeviceState_DEVICE_STATE_OUT, 0)
	for _, dir := range []string{"/c", "/d"} {
		format(t, fsys, dir)
	}
	meta.refuses(t, fsys, "/c")
	err := h.serves(t, "/a", "/c", "/d")
	require.ErrorIs(t, err, moraine.InvalidArgument)
	require.ErrorContains(t, err, "/c")
	require.NotContains(t, err.Error(), "/d")
	require.NotContains(t, err.Error(), "/b")
	require.Equal(t, 2, meta.registered())
	free(t, fsys, "/b")
	free(t, fsys, "/c")
	c := on(chunk(1, 70_000), 3)
	_, err = c.put(t, h)
	require.NoError(t, err, "/d is served")
	c.check(t, h)
}

// TestRefusedDeviceThatHangsDelaysNoHeartbeat: the disk of a refused device hangs
// while it is closed.
func TestRefusedDeviceThatHangsDelaysNoHeartbeat(t *testing.T) {
	mem := vfs.NewMem(1)
	var hangs, hung atomic.Bool
	answers := make(chan struct{})
	fsys := vfs.NewFault(mem, func(op vfs.Op) error {
		if op.Kind == vfs.OpClose && hangs.Load() && strings.HasPrefix(op.Path, "/b/") {
			hung.Store(true)
			<-answers
		}
		return nil
	})
	meta := newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	format(t, mem, "/b")
	meta.refuses(t, mem, "/b")
	// The files that opening closes are closed before the registration.
	meta.whenRefused(func() { hangs.Store(true) })
	changed := make(chan error, 1)
	go func() { changed <- h.SetDevices(t.Context(), config("/a", "/b").Devices) }()
	h.waitFor(t, hung.Load)
	before := meta.beatsNow()
	h.waitFor(t, func() bool { return len(meta.beats) > before+5 })
	close(answers)
	require.ErrorIs(t, <-changed, moraine.InvalidArgument)
	free(t, mem, "/b")
}

// TestRefusedDeviceThatHangsIsNamed: the disk of a refused device hangs for long
// while it is closed. The change ends and names it, and the other new devices are
// added.
func TestRefusedDeviceThatHangsIsNamed(t *testing.T) {
	mem := vfs.NewMem(1)
	fsys, hangs, answers := hangsAtClose(mem, "/b/")
	meta := newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	h.SetCloseWait(500 * time.Millisecond) // /c is closed sooner, also on a busy machine
	answer := sync.OnceFunc(func() { close(answers) })
	t.Cleanup(answer) // also of a test that fails: the end of the host waits for it
	format(t, mem, "/b")
	format(t, mem, "/c")
	meta.refuses(t, mem, "/b")
	meta.whenRefused(func() { hangs.Store(true) })
	err := h.serves(t, "/a", "/b", "/c")
	require.ErrorIs(t, err, moraine.Busy)
	require.ErrorContains(t, err, "/b")
	require.NotContains(t, err.Error(), "/c")
	require.Equal(t, 2, meta.registered(), "/c is taken")
	answer()
	closesAtLast(t, mem, "/b")
}

// TestHeartbeatsContinueWhileAHostMustRegister: a metadata service that does not
// know the host, as may happen with a new leader, requests a registration and does
// not answer it. Heartbeats continue.
func TestHeartbeatsContinueWhileAHostMustRegister(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	held := make(chan struct{})
	meta.set(func() { meta.held, meta.unknown, meta.host = held, true, nil })
	h.waitFor(t, func() bool { return meta.holding == 1 })
	before := meta.beatsNow()
	h.waitFor(t, func() bool { return len(meta.beats) > before+20 })
	meta.set(func() { meta.held = nil })
	close(held)
	h.waitFor(t, func() bool { return meta.host != nil })
}

// TestRegistrationDelaysNoHeartbeat: a registration with new devices stays
// unanswered for longer than the host may be silent. Heartbeats continue beside it.
// None of them registers the host without the new devices, and the registration
// counts when it is answered.
func TestRegistrationDelaysNoHeartbeat(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	h := start(t, fsys, meta, config("/a"))
	format(t, fsys, "/b")
	held := make(chan struct{})
	meta.set(func() { meta.held = held })
	changed := make(chan error, 1)
	go func() { changed <- h.SetDevices(t.Context(), config("/a", "/b").Devices) }()
	h.waitFor(t, func() bool { return meta.holding == 1 })
	meta.set(func() { meta.unknown = true })
	before := meta.beatsNow()
	h.waitFor(t, func() bool { return len(meta.beats) > before+20 })
	require.Equal(t, 1, meta.registered())
	meta.set(func() { meta.held = nil })
	close(held)
	require.NoError(t, <-changed)
	require.Equal(t, 2, meta.registered())
	c := on(chunk(1, 70_000), 2)
	_, err := c.put(t, h)
	require.NoError(t, err)
	c.check(t, h)
}

// said is a log whose refusals are counted.
type said struct {
	slog.Handler
	refusals *atomic.Int64
}

func (s said) Enabled(context.Context, slog.Level) bool { return true }

func (s said) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "host registration refused") {
		s.refusals.Add(1)
	}
	return nil
}

// TestRefusedHostRetriesSeldomAndLogsIt: after a refused change the host is also
// refused as it is. It logs that, retries at growing intervals, and is registered
// once it may be.
func TestRefusedHostRetriesSeldomAndLogsIt(t *testing.T) {
	fsys, meta := vfs.NewMem(1), newFakeMeta()
	var refusals atomic.Int64
	h := startLogging(t, fsys, meta, config("/a"), slog.New(said{slog.DiscardHandler, &refusals}))
	format(t, fsys, "/b")
	asked, beats := 0, 0
	meta.set(func() {
		meta.fault = func(req *wire.MetaRequest, done bool) error {
			switch req.Op.(type) {
			case *wire.MetaRequest_Heartbeat:
				if asked > 0 && done {
					beats++
				}
			case *wire.MetaRequest_RegisterHost:
				if !done {
					asked++
					return &moraine.Error{Kind: moraine.PermissionDenied}
				}
			}
			return nil
		}
	})
	require.ErrorIs(t, h.serves(t, "/a", "/b"), moraine.PermissionDenied)
	h.waitFor(t, func() bool { return beats >= 60 })
	meta.set(func() {
		require.GreaterOrEqual(t, asked, 3, "it goes on to ask")
		require.LessOrEqual(t, asked, 10, "at 1, 2, 4, 8, ... intervals")
	})
	require.GreaterOrEqual(t, refusals.Load(), int64(1), "the log says so")
	meta.set(func() { meta.fault, meta.host = nil, nil })
	h.waitFor(t, func() bool { return meta.host != nil })
	require.Equal(t, 1, meta.registered())
}
