package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/lead"
	"github.com/morainefs/moraine/metadata/raftstore"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// backupPiece is the number of bytes of a backup that one request reads.
	backupPiece = 1 << 20
	// maxBackups bounds the backups that are read at once, because each keeps a snapshot.
	maxBackups = 2
	// backupIdle is the time after which a backup that nobody reads is closed.
	backupIdle = time.Minute
)

// snapshotter is a Store that can be backed up.
type snapshotter interface {
	Snapshot(ctx context.Context) (raftstore.BackupInfo, io.ReadCloser, error)
}

// backups are those that this server's callers read.
type backups struct {
	mu        sync.Mutex
	last      uint64
	beginning int // backups with a reserved place and no snapshot yet
	open      map[uint64]*backup
}

// backup is one that is being read, front to back. It keeps the last piece for a caller that did
// not receive it.
type backup struct {
	mu     sync.Mutex
	info   raftstore.BackupInfo
	stream io.ReadCloser // nil after its end was read, or it was closed
	offset uint64        // offset of piece
	piece  []byte
	used   time.Time
}

// readBackup answers with the next piece of a backup; without a number it starts a new one.
func (d *backupDesk) readBackup(ctx context.Context, c *lead.Call) (*wire.MetaResponse, error) {
	asked := c.Req.GetReadBackup()
	if asked.End {
		return d.endBackup(asked.Backup)
	}
	id, b, err := d.backup(ctx, asked.Backup)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = d.Clock.Now()
	switch next := b.offset + uint64(len(b.piece)); asked.Offset {
	case b.offset: // a retry, or the first piece
	case next:
		if err := b.read(next); err != nil {
			// The stream has advanced past next, so the bytes at next cannot be read any more.
			return nil, errors.Join(err, d.backups.end(id, b))
		}
	default:
		return nil, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("the request names offset %d of a backup whose reader is at %d", asked.Offset, next)}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_ReadBackup{ReadBackup: &wire.ReadBackupReply{
		Backup: id, Applied: b.info.Applied, Term: b.info.Term, Incarnation: uint64(d.Cluster.Incarnation),
		Cluster: d.Cluster.UUID[:], HorizonMillis: uint64(d.cfg.BackupHorizon.Milliseconds()), Size: uint64(b.info.Bytes), Data: b.piece}}}, nil
}

// endBackup closes a backup at its reader's request. It succeeds if the backup is gone.
func (d *backupDesk) endBackup(id uint64) (*wire.MetaResponse, error) {
	set := d.backups
	set.mu.Lock()
	b := set.open[id]
	set.mu.Unlock()
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if err := set.end(id, b); err != nil {
			return nil, err
		}
	}
	return &wire.MetaResponse{Result: &wire.MetaResponse_ReadBackup{ReadBackup: &wire.ReadBackupReply{Backup: id}}}, nil
}

// read reads the piece at next. The caller holds the mutex.
func (b *backup) read(next uint64) error {
	left := uint64(b.info.Bytes) - next
	if b.stream == nil {
		return errBackupEnded
	}
	p := make([]byte, min(backupPiece, left))
	_, err := io.ReadFull(b.stream, p)
	if err == nil && left == 0 {
		err = b.close()
	}
	if err != nil {
		return &moraine.Error{Kind: moraine.IOError, Err: fmt.Errorf("read the snapshot at %d: %w", next, err)}
	}
	b.offset, b.piece = next, p
	return nil
}

// close releases the snapshot. The caller holds the mutex.
func (b *backup) close() error {
	if b.stream == nil {
		return nil
	}
	stream := b.stream
	b.stream = nil
	return stream.Close()
}

var errBackupEnded = &moraine.Error{Kind: moraine.Stale, Err: errors.New("the backup was abandoned, or another server leads now: start the backup again")}

// backup finds a backup, or starts one.
func (d *backupDesk) backup(ctx context.Context, id uint64) (uint64, *backup, error) {
	set := d.backups
	set.mu.Lock()
	b := set.open[id]
	set.mu.Unlock()
	if b != nil {
		return id, b, nil
	}
	if id != 0 {
		return 0, nil, errBackupEnded
	}
	store, ok := d.Store.(snapshotter)
	if !ok {
		return 0, nil, &moraine.Error{Kind: moraine.Unimplemented, Err: errors.New("this store has no snapshots")}
	}
	if err := d.Store.ReadBarrier(ctx); err != nil {
		return 0, nil, err
	}
	if err := set.makeRoom(d.Clock.Now()); err != nil {
		return 0, nil, err
	}
	b, err := d.beginBackup(ctx, store)
	set.mu.Lock()
	defer set.mu.Unlock()
	set.beginning--
	if err != nil {
		return 0, nil, err
	}
	if !d.leads() { // no sweep would close it
		return 0, nil, errors.Join(lead.ErrStopped, b.stream.Close())
	}
	if set.open == nil {
		set.open = make(map[uint64]*backup)
	}
	set.last++
	id = d.Store.Term()<<20 | set.last&(1<<20-1) // unique across leaders
	set.open[id] = b
	return id, b, nil
}

// beginBackup takes a snapshot, and reads its first piece.
func (d *backupDesk) beginBackup(ctx context.Context, store snapshotter) (*backup, error) {
	info, stream, err := store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	p := make([]byte, min(backupPiece, info.Bytes))
	if _, err := io.ReadFull(stream, p); err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return &backup{info: info, stream: stream, piece: p, used: d.Clock.Now()}, nil
}

// makeRoom reserves a place for a new backup.
func (s *backups) makeRoom(now time.Time) error {
	held, err := s.sweep(now)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if held+s.beginning >= maxBackups {
		return &moraine.Error{Kind: moraine.Busy, Err: fmt.Errorf("%d backups are in progress: try again in a minute", maxBackups)}
	}
	s.beginning++
	return nil
}

// sweep closes backups that nobody has read for a while. It returns how many have a snapshot, from
// which on the log must be kept.
func (s *backups) sweep(now time.Time) (held int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, b := range s.open {
		if !b.mu.TryLock() {
			held++
			continue // a request is reading it
		}
		if now.Sub(b.used) > backupIdle {
			delete(s.open, id)
			err = errors.Join(err, b.close())
		}
		if b.stream != nil {
			held++
		}
		b.mu.Unlock()
	}
	return held, err
}

// end closes a backup. The caller holds its mutex.
func (s *backups) end(id uint64, b *backup) error {
	err := b.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, id)
	return err
}

// closeAll closes all backups.
func (s *backups) closeAll() (err error) {
	s.mu.Lock()
	all := s.open
	s.open = nil
	s.mu.Unlock()
	for _, b := range all {
		b.mu.Lock()
		err = errors.Join(err, b.close())
		b.mu.Unlock()
	}
	return err
}
