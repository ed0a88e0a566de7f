package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// backupPiece is how much of a backup one request reads.
	backupPiece = 1 << 20
	// maxBackups bounds the backups that are read at once: each holds a snapshot.
	maxBackups = 2
	// backupIdle is after how long a backup that nobody reads is given up.
	backupIdle = time.Minute
)

// snapshotter is a Store of which backups are taken.
type snapshotter interface {
	Snapshot(ctx context.Context) (raftstore.BackupInfo, io.ReadCloser, error)
}

// backups are those that this server's callers read.
type backups struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]*backup
}

// backup is one that is being read, front to back. The piece read last is kept,
// for a caller that did not get it.
type backup struct {
	mu     sync.Mutex
	info   raftstore.BackupInfo
	stream io.ReadCloser
	offset uint64 // of piece
	piece  []byte
	used   time.Time
}

// readBackup answers with the next piece of a backup, the first of a new one
// where none is named.
func (l *leader) readBackup(ctx context.Context, c *call) (*wire.MetaResponse, error) {
	asked := c.req.GetReadBackup()
	id, b, err := l.backup(ctx, asked.Backup)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = l.deps.Clock.Now()
	switch next := b.offset + uint64(len(b.piece)); asked.Offset {
	case b.offset: // again, or the first
	case next:
		p := make([]byte, min(backupPiece, uint64(b.info.Bytes)-next))
		if _, err := io.ReadFull(b.stream, p); err != nil {
			return nil, &moraine.Error{Kind: moraine.IOError, Err: fmt.Errorf("read the snapshot at %d: %w", next, err)}
		}
		b.offset, b.piece = next, p
	default:
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("offset %d of a backup that is read at %d", asked.Offset, next)}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_ReadBackup{ReadBackup: &wire.ReadBackupReply{
		Backup: id, Applied: b.info.Applied, Term: b.info.Term, Incarnation: uint64(l.cluster.incarnation),
		Cluster: l.cluster.uuid[:], HorizonMillis: uint64(l.cfg.BackupHorizon.Milliseconds()), Size: uint64(b.info.Bytes), Data: b.piece}}}, nil
}

// backup finds a backup, or begins one.
func (l *leader) backup(ctx context.Context, id uint64) (uint64, *backup, error) {
	set := &l.server.backups
	set.mu.Lock()
	b := set.open[id]
	set.mu.Unlock()
	if b != nil {
		return id, b, nil
	}
	if id != 0 {
		return 0, nil, &moraine.Error{Kind: moraine.Stale, Err: errors.New("the backup was given up, or another server leads now: begin it anew")}
	}
	store, ok := l.store.(snapshotter)
	if !ok {
		return 0, nil, &moraine.Error{Kind: moraine.Unimplemented, Err: errors.New("this store has no snapshots")}
	}
	if err := l.store.ReadBarrier(ctx); err != nil {
		return 0, nil, err
	}
	if err := set.makeRoom(l.deps.Clock.Now()); err != nil {
		return 0, nil, err
	}
	info, stream, err := store.Snapshot(ctx)
	if err != nil {
		return 0, nil, err
	}
	p := make([]byte, min(backupPiece, info.Bytes))
	if _, err := io.ReadFull(stream, p); err != nil {
		return 0, nil, errors.Join(err, stream.Close())
	}
	b = &backup{info: info, stream: stream, piece: p, used: l.deps.Clock.Now()}
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.open == nil {
		set.open = make(map[uint64]*backup)
	}
	set.last++
	id = l.store.Term()<<20 | set.last&(1<<20-1) // so that no other leader gives it
	set.open[id] = b
	return id, b, nil
}

// makeRoom gives up backups that nobody reads.
func (s *backups) makeRoom(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, b := range s.open {
		b.mu.Lock()
		over := now.Sub(b.used) > backupIdle || b.offset+uint64(len(b.piece)) == uint64(b.info.Bytes)
		b.mu.Unlock()
		if over {
			delete(s.open, id)
			if err := b.stream.Close(); err != nil {
				return err
			}
		}
	}
	if len(s.open) >= maxBackups {
		return &moraine.Error{Kind: moraine.Busy, Err: fmt.Errorf("%d backups are being taken: try again in a minute", maxBackups)}
	}
	return nil
}

// closeAll ends all backups.
func (s *backups) closeAll() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for id, b := range s.open {
		delete(s.open, id)
		err = errors.Join(err, b.stream.Close())
	}
	return err
}
