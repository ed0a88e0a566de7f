package fuse_test

import (
	"bytes"
	"context"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// heldCluster starts a cluster whose devices can be blocked, and whose chunkservers
// already answer at level memory.
func heldCluster(t *testing.T, h *incluster.Hold, hosts, devices int) *incluster.Cluster {
	t.Helper()
	c := startCluster(t, incluster.Options{Seed: 1, Chunkservers: hosts, Devices: devices, Rule: h.Rule})
	t.Cleanup(h.End) // before the cluster ends
	return c
}

func levelOf(t *testing.T, m *mounted, name string) moraine.Level {
	t.Helper()
	a, err := m.client.Stat(t.Context(), "/"+name)
	require.NoError(t, err)
	return a.Level()
}

// atMemory writes stripes: content in the metadata is at nvme at once.
var atMemory = mountOptions{client: client.Config{InlineBytes: -1}, mount: fuse.Config{Level: moraine.Memory}}

// A mount at level memory: close returns while no device has a byte yet, and every
// mount reads the file. fsync returns when the devices have it. So do, on any
// mount, each write to a file opened with O_SYNC or O_DSYNC, and close of any file
// on a mount at level nvme.
func TestLevelsOfCloseAndFsync(t *testing.T) {
	h := &incluster.Hold{}
	c := heldCluster(t, h, 3, 1)
	fast, safe := mount(t, c, "c1", atMemory), mount(t, c, "c2", mountOptions{client: client.Config{InlineBytes: -1}})
	data := randomBytes(seed(t), 3<<20+77)
	h.Begin()
	require.NoError(t, os.WriteFile(fast.at("closed"), data, 0o644))
	require.Equal(t, moraine.Memory, levelOf(t, fast, "closed"))
	got, err := os.ReadFile(safe.at("closed"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))

	type call struct {
		name  string
		file  *os.File
		end   func(*os.File) error
		early bool // it returned while the devices were blocked
		err   error
	}
	open := func(path string, data []byte) *os.File {
		f, err := os.Create(path)
		require.NoError(t, err)
		_, err = f.Write(data)
		require.NoError(t, err)
		return f
	}
	reopened, err := os.Open(fast.at("closed")) // a file that another program closed is synced too
	require.NoError(t, err)
	calls := []*call{
		{name: "fsync", file: open(fast.at("synced"), data), end: (*os.File).Sync},
		{name: "fsync of what was closed before", file: reopened, end: (*os.File).Sync},
		{name: "close at nvme", file: open(safe.at("safe"), data[:10_000]), end: (*os.File).Close},
	}
	var running sync.WaitGroup
	for _, c := range calls {
		running.Go(func() {
			c.err = c.end(c.file)
			c.early = h.On()
		})
	}
	for _, w := range []struct {
		name string
		flag int
		on   *mounted
	}{{"o_sync", syscall.O_SYNC, fast}, {"o_dsync", syscall.O_DSYNC, fast}, {"appended", syscall.O_DSYNC | syscall.O_APPEND, fast}, {"o_sync_at_nvme", syscall.O_SYNC, safe}} {
		c := &call{name: w.name}
		calls = append(calls, c)
		running.Go(func() {
			f, err := os.OpenFile(w.on.at(w.name), os.O_CREATE|os.O_RDWR|w.flag, 0o644)
			if err == nil {
				_, err = f.Write(data[:10_000]) // nothing else has sent these bytes so soon
			}
			c.early = h.On() // the write itself
			if err == nil {
				err = f.Close()
			}
			c.err = err
		})
	}
	time.Sleep(500 * time.Millisecond) // catches an early return
	require.True(t, h.On())
	h.End()
	running.Wait()
	for _, c := range calls {
		require.NoError(t, c.err, c.name)
		require.False(t, c.early, "%s returned before the devices had the bytes", c.name)
	}
	for _, name := range []string{"synced", "closed", "safe", "o_sync", "o_dsync", "appended", "o_sync_at_nvme"} {
		require.Equal(t, moraine.NVMe, levelOf(t, fast, name), name)
	}
	require.NoError(t, calls[0].file.Close())
	require.NoError(t, reopened.Close())
}

// A file closed at level memory, and lost with all chunkservers before a device had
// it, gives readers an error, not zeros. A file synced on the same mount is whole,
// and so is the lost file once it is written again.
func TestWhatAMountClosedAtMemoryMayBeLost(t *testing.T) {
	h := &incluster.Hold{}
	c := heldCluster(t, h, 3, 1)
	m := mount(t, c, "c1", atMemory)
	data := randomBytes(seed(t), 1<<20)
	f, err := os.Create(m.at("synced"))
	require.NoError(t, err)
	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	h.Begin()
	require.NoError(t, os.WriteFile(m.at("closed"), data, 0o644))
	require.True(t, h.On())
	nodes := []string{"n1", "n2", "n3"}
	// A killed chunkserver leaves the disk as it is then; blocked writes go
	// nowhere.
	c.Kill(nodes...)
	h.End()
	require.NoError(t, c.Restart(nodes...))
	require.NoError(t, c.WaitReady(t.Context()))
	require.Eventually(t, func() bool { return levelOf(t, m, "closed") == 0 }, time.Minute, 50*time.Millisecond)
	_, err = os.ReadFile(m.at("closed"))
	require.ErrorIs(t, err, syscall.EIO)
	got, err := os.ReadFile(m.at("synced"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got))
	require.NoError(t, os.WriteFile(m.at("closed"), data[:1000], 0o644))
	got, err = os.ReadFile(m.at("closed"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data[:1000], got))
}

// On a single host memory is one copy, so close waits for the devices. This holds
// also for a mount that expects several hosts, and learns it from the commit.
func TestCloseOnASingleHostWaitsForItsDevices(t *testing.T) {
	for _, knows := range []bool{true, false} {
		h := &incluster.Hold{}
		c := heldCluster(t, h, 1, 2)
		o := atMemory
		if !knows {
			o.over = func(d transport.Dialer) transport.Dialer {
				return incluster.Through(d, func(ctx context.Context, m transport.Metadata, req *wire.MetaRequest) (*wire.MetaResponse, error) {
					resp, err := m.Do(ctx, req)
					if top := resp.GetTopology(); top != nil {
						top.Hosts = append(top.Hosts, &wire.Host{Id: "another", Alive: true,
							Devices: []*wire.Device{{Id: 1 << 20, Alive: true, State: wire.DeviceState_DEVICE_STATE_IN}}})
					}
					return resp, err
				})
			}
		}
		o.client.InlineBytes = -1
		m := mount(t, c, "c1", o)
		h.Begin()
		ended := make(chan error, 1)
		early := false
		go func() {
			err := os.WriteFile(m.at("file"), []byte("content"), 0o644)
			early = h.On()
			ended <- err
		}()
		time.Sleep(300 * time.Millisecond) // catches an early return
		require.True(t, h.On())
		h.End()
		require.NoError(t, <-ended)
		require.False(t, early, "close returned before the devices had the bytes")
		require.Equal(t, moraine.NVMe, levelOf(t, m, "file"))
	}
}
