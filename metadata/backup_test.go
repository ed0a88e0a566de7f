package metadata_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
)

// backedUp is a store whose snapshots are bytes from the test.
type backedUp struct {
	metadata.Store
	bytes []byte
	taken chan struct{} // if not nil, a snapshot waits until it is closed

	mu       sync.Mutex
	failing  int // reads, of all streams, that fail after some bytes
	snaps    int
	open     int
	mostOpen int
}

func (b *backedUp) Snapshot(context.Context) (raftstore.BackupInfo, io.ReadCloser, error) {
	if b.taken != nil {
		<-b.taken
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.snaps++
	b.open++
	b.mostOpen = max(b.mostOpen, b.open)
	return raftstore.BackupInfo{Cluster: clusterUUID, Bytes: int64(len(b.bytes))}, &brokenStream{Reader: bytes.NewReader(b.bytes), store: b}, nil
}

type brokenStream struct {
	*bytes.Reader
	store *backedUp
	past  bool // the first piece was read
}

func (s *brokenStream) Read(p []byte) (int, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if s.past && s.store.failing > 0 {
		s.store.failing--
		n, _ := s.Reader.Read(p[:min(len(p), 1000)])
		return n, errors.New("the disk failed")
	}
	s.past = true
	return s.Reader.Read(p)
}

func (s *brokenStream) Close() error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.open--
	return nil
}

// openNow returns the number of open streams.
func (b *backedUp) openNow() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// withBackups runs fn with a cluster whose stores have snapshots.
func withBackups(t *testing.T, size int, fn func(c *cluster, stores map[string]*backedUp)) {
	stores := map[string]*backedUp{}
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	bubbleWith(t, func(cfg *metadata.Config, deps *metadata.Deps) {
		inner, id := deps.NewStore, cfg.Node
		deps.NewStore = func(fsm metadata.FSM) (metadata.Store, error) {
			s, err := inner(fsm)
			stores[id] = &backedUp{Store: s, bytes: data}
			return stores[id], err
		}
	}, func(c *cluster) { fn(c, stores) })
}

func readBackup(id, offset uint64) *wire.MetaRequest {
	return &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: &wire.ReadBackup{Backup: id, Offset: offset}}}
}

// If a read of the snapshot fails in the middle of a piece, the backup ends: the stream has
// advanced, and a retry would get bytes of another offset.
func TestABackupWhoseStreamFailedIsNotReadOn(t *testing.T) {
	withBackups(t, 5<<20, func(c *cluster, stores map[string]*backedUp) {
		ops := peer(transport.RoleAdmin, "ops")
		resp, err := c.do(ops, readBackup(0, 0))
		require.NoError(t, err)
		r := resp.GetReadBackup()
		stores["m1"].failing = 1
		_, err = c.do(ops, readBackup(r.Backup, uint64(len(r.Data))))
		require.ErrorIs(t, err, moraine.IOError)
		_, err = c.do(ops, readBackup(r.Backup, uint64(len(r.Data))))
		require.ErrorIs(t, err, moraine.Stale, "what is read on is not what the offset says")
		require.Zero(t, stores["m1"].open, "the snapshot of a backup that ended is held")

		var got []byte
		for id := uint64(0); len(got) < len(stores["m1"].bytes); {
			resp, err := c.do(ops, readBackup(id, uint64(len(got))))
			require.NoError(t, err)
			id, got = resp.GetReadBackup().Backup, append(got, resp.GetReadBackup().Data...)
		}
		require.True(t, bytes.Equal(got, stores["m1"].bytes))
	})
}

// The number of backups started simultaneously is bounded like those started one after the other,
// because each keeps a snapshot.
func TestBackupsThatBeginAtOnceAreBounded(t *testing.T) {
	withBackups(t, 5<<20, func(c *cluster, stores map[string]*backedUp) {
		s := stores["m1"]
		s.taken = make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		refused := 0
		for range 8 {
			wg.Go(func() {
				_, err := c.do(peer(transport.RoleAdmin, "ops"), readBackup(0, 0))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					require.ErrorIs(t, err, moraine.Busy)
					refused++
				}
			})
		}
		synctest.Wait()
		close(s.taken)
		wg.Wait()
		require.Equal(t, 6, refused)
		require.Equal(t, 2, s.mostOpen)
	})
}

// A backup that nobody reads any more releases its snapshot. The log is kept from an open snapshot
// on, and would otherwise grow until the disk is nearly full.
func TestABackupThatIsLeftHoldsNoSnapshot(t *testing.T) {
	withBackups(t, 5<<20, func(c *cluster, stores map[string]*backedUp) {
		s, ops := stores["m1"], peer(transport.RoleAdmin, "ops")
		begin := func() *wire.ReadBackupReply {
			resp, err := c.do(ops, readBackup(0, 0))
			require.NoError(t, err)
			return resp.GetReadBackup()
		}
		r := begin()
		require.Equal(t, 1, s.openNow())
		time.Sleep(2 * time.Minute)
		require.Zero(t, s.openNow(), "the snapshot of a backup that its reader has left")
		_, err := c.do(ops, readBackup(r.Backup, uint64(len(r.Data))))
		require.ErrorIs(t, err, moraine.Stale)

		for range 2 * 3 { // more than there are places
			r = begin()
			end := &wire.MetaRequest{Op: &wire.MetaRequest_ReadBackup{ReadBackup: &wire.ReadBackup{Backup: r.Backup, End: true}}}
			for range 2 { // the answer is lost once
				_, err = c.do(ops, end)
				require.NoError(t, err)
			}
			require.Zero(t, s.openNow(), "its reader has said that it reads no more")
		}

		begin()
		c.elect("m2")
		require.Zero(t, s.openNow(), "a server that does not lead any more holds a snapshot")
	})
}

// New backups do not end a backup that was read up to its last byte: its reader sends one more
// request, and learns that this was the end.
func TestABackupIsReadToItsEnd(t *testing.T) {
	withBackups(t, 1000, func(c *cluster, stores map[string]*backedUp) {
		ops := peer(transport.RoleAdmin, "ops")
		resp, err := c.do(ops, readBackup(0, 0))
		require.NoError(t, err)
		r := resp.GetReadBackup()
		require.Len(t, r.Data, 1000)
		_, err = c.do(ops, readBackup(0, 0)) // another
		require.NoError(t, err)
		for range 2 { // the answer is lost once
			resp, err = c.do(ops, readBackup(r.Backup, 1000))
			require.NoError(t, err)
			require.Empty(t, resp.GetReadBackup().Data)
		}
		require.Equal(t, 1, stores["m1"].open, "one that was read holds no snapshot")
	})
}
