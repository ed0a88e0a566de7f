package fuse_test

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// unsettled is a metadata service that does not receive settle requests while held
// says so.
type unsettled struct {
	transport.Metadata
	held *atomic.Bool
}

func (u unsettled) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if req.GetSettleChunks() != nil && u.held.Load() {
		return nil, &moraine.Error{Op: "test", Kind: moraine.Unavailable}
	}
	return u.Metadata.Do(ctx, req)
}

// TestInterruptedSyncOfAnAppend: a write with O_APPEND and O_SYNC gets a signal
// when its bytes are in the file and it waits for the devices. It does not return
// EINTR, after which programs would write the bytes again.
func TestInterruptedSyncOfAnAppend(t *testing.T) {
	held := &atomic.Bool{}
	c := startCluster(t, incluster.Options{Seed: 1, Chunkservers: 3, Devices: 1, Meta: func(_ string, m transport.Metadata) transport.Metadata {
		return unsettled{m, held}
	}})
	m := mount(t, c, "c1", atMemory)
	held.Store(true)
	require.NoError(t, os.WriteFile(m.at("f"), []byte("first"), 0o644))
	require.Equal(t, moraine.Memory, levelOf(t, m, "f"))
	f, err := os.OpenFile(m.at("f"), os.O_WRONLY|os.O_APPEND|os.O_SYNC, 0)
	require.NoError(t, err)
	defer f.Close()
	m.fsys.InterruptAfter(time.Millisecond)
	defer m.fsys.InterruptAfter(0)
	err = interrupted(func() error {
		_, err := unix.Write(int(f.Fd()), []byte(", second"))
		return err
	}, func() bool {
		a, err := m.client.Stat(t.Context(), "/f")
		return err == nil && a.Size() == 13
	})
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	held.Store(false)
	got, err := os.ReadFile(m.at("f"))
	require.NoError(t, err)
	require.Equal(t, "first, second", string(got))
}
