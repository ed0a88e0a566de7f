package raftstore

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

// checkpointSink makes one snapshot: from the local state (capture) or from a stream (Write).
type checkpointSink struct {
	store    *snapshotStore
	tmp      string
	began    time.Time
	snap     *snapshot
	received *reception // once Write was called
	ended    bool
}

var _ raft.SnapshotSink = (*checkpointSink)(nil)

// ID implements raft.SnapshotSink.
func (c *checkpointSink) ID() string { return c.snap.meta.ID }

// capture takes a checkpoint of the state. It flushes first, because raft then truncates the log up
// to the snapshot's index, and the state must be durable without it.
func (c *checkpointSink) capture() error {
	st := c.store.state
	st.mu.RLock()
	defer st.mu.RUnlock()
	if st.db == nil {
		return errClosed
	}
	// The state may advance while the checkpoint is taken. It has reached at least this index, and
	// a snapshot's index is a minimum.
	index, err := applied(st.db)
	if err != nil {
		return err
	}
	if err := st.db.Flush(); err != nil {
		return err
	}
	dir := filepath.Join(c.tmp, snapCheckpoint)
	if err := st.db.Checkpoint(dir, pebble.WithFlushedWAL()); err != nil {
		return err
	}
	files, err := checkpointFiles(c.store.fs, dir)
	if err != nil {
		return err
	}
	c.snap.applied = index
	c.snap.meta.Size = streamSize(files)
	return nil
}

// Write implements io.Writer: the next bytes of a received stream.
func (c *checkpointSink) Write(p []byte) (int, error) {
	if c.received == nil {
		c.snap.form = snapReceived
		c.received = c.store.receive(filepath.Join(c.tmp, snapCheckpoint))
	}
	n, err := c.received.Write(p)
	c.snap.meta.Size += int64(n)
	c.store.metrics.ReceivedBytes.Add(float64(n))
	return n, err
}

// Cancel implements raft.SnapshotSink.
func (c *checkpointSink) Cancel() error {
	if c.ended {
		return nil
	}
	c.ended = true
	if c.received != nil {
		c.received.cancel()
	}
	return c.store.fs.RemoveAll(c.tmp)
}

// Close implements raft.SnapshotSink: either the snapshot becomes the newest, durably, or there is
// none.
func (c *checkpointSink) Close() error {
	if c.ended {
		return nil
	}
	if err := c.publish(); err != nil {
		return errors.Join(err, c.Cancel())
	}
	c.ended = true
	action := "taken"
	if c.snap.form == snapReceived {
		action = "received"
	}
	c.store.metrics.Snapshots.WithLabelValues(action).Inc()
	c.store.metrics.SnapshotSeconds.Observe(c.store.clock.Since(c.began).Seconds())
	return nil
}

func (c *checkpointSink) publish() error {
	s := c.store
	if c.received != nil {
		applied, err := c.received.end()
		if err != nil {
			return err
		}
		c.snap.applied = applied
	}
	if err := writeSynced(s.fs, filepath.Join(c.tmp, snapMetaFile), c.snap.encode()); err != nil {
		return err
	}
	if err := s.fs.SyncDir(c.tmp); err != nil {
		return err
	}
	c.snap.made = s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	// COMMIT POINT of a snapshot: the rename, once the directory is synced.
	if err := s.fs.Rename(c.tmp, filepath.Join(s.dir, c.snap.meta.ID)); err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		return err
	}
	s.snaps = append(s.snaps, c.snap)
	s.sort()
	return s.retire()
}
