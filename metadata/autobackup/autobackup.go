// Package autobackup makes automatic backups of the metadata while a metadata
// server leads. It makes one per interval, and one at once if there is no
// recent one. It keeps the newest few in a directory. It removes older ones
// only after a new one is complete, synced, and has its name. A failed backup
// leaves the earlier ones.
//
// New(cfg, deps) makes the Backups. Run(ctx, source) makes backups while the
// server leads. Status says when the last one was made, and why the next one
// failed.
package autobackup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/clock"
	"github.com/morainefs/moraine/internal/vfs"
	"github.com/morainefs/moraine/metadata/raftstore"
)

// Config says where backups go and how many are kept.
type Config struct {
	// Dir is created if missing; empty: no backups are made.
	Dir string
	// Every is the age of the newest backup at which another is made, at least one second.
	Every time.Duration
	// Keep is the number of backups kept, at least 1.
	Keep int
	// Horizon is the backup horizon, recorded in each backup.
	Horizon time.Duration
	// Cluster is the cluster's identity. It is in the file names, so that clusters may share Dir.
	Cluster moraine.UUID
	// Node is the server's ID. It is in the name of an unfinished backup, so that servers may share
	// Dir.
	Node string
}

// Deps are the dependencies that tests replace. All are required.
type Deps struct {
	FS    vfs.FS
	Clock clock.Clock
	Log   *slog.Logger
}

// Source provides the snapshots for backups. The caller closes the stream.
type Source interface {
	Snapshot(ctx context.Context) (raftstore.BackupInfo, io.ReadCloser, error)
}

// Status describes the backups as this server knows them.
type Status struct {
	Dir   string
	Every time.Duration
	// Taken is when the newest backup in Dir was made, to the second; zero if there is none.
	Taken time.Time
	Bytes int64 // its size
	Kept  int   // backups in Dir
	// Err is why the last backup failed; nil after a success.
	Err error
}

// Overdue reports whether no backup was made for two intervals and a minute. It
// is true too if the newest one has a time in the future: its age is unknown.
func (s *Status) Overdue(now time.Time) bool {
	age := now.Sub(s.Taken)
	return s.Every > 0 && (s.Taken.IsZero() || age > 2*s.Every+time.Minute || age < -time.Minute)
}

const (
	// retryAfter is the pause after a failure; a shorter interval takes its place.
	retryAfter = 5 * time.Minute
	// spareShare is the part of the file system that must stay free, since the state may be on it
	// too.
	spareShare = 10
	// abandonedAfter is the age at which another server's unfinished backup is removed; until then
	// it may be in progress.
	abandonedAfter = 24 * time.Hour
	suffix         = ".backup"
	partSuffix     = ".part"
	nameTime       = "20060102T150405Z"
)

// Backups makes one server's backups. Methods may be called concurrently, but Run only by one
// goroutine at a time.
type Backups struct {
	cfg  Config
	deps Deps

	mu     sync.Mutex
	status Status
}

// New makes Backups. It touches no file.
func New(cfg Config, deps Deps) *Backups {
	return &Backups{cfg: cfg, deps: deps, status: Status{Dir: cfg.Dir, Every: cfg.Every}}
}

// Status returns the status; false if no backups are made.
func (b *Backups) Status() (Status, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status, b.cfg.Dir != ""
}

// Run makes backups of a source of the given incarnation, until ctx ends.
func (b *Backups) Run(ctx context.Context, src Source, incarnation moraine.Incarnation) {
	if b.cfg.Dir == "" {
		return
	}
	for ctx.Err() == nil {
		rest, err := b.once(ctx, src, incarnation)
		if err != nil && ctx.Err() == nil {
			b.deps.Log.Error("backup failed", "dir", b.cfg.Dir, "err", err)
		}
		select {
		case <-ctx.Done():
		case <-b.deps.Clock.After(rest):
		}
	}
}

// once makes a backup if one is due, and returns how long to wait.
func (b *Backups) once(ctx context.Context, src Source, incarnation moraine.Incarnation) (time.Duration, error) {
	all, err := b.list()
	if err == nil {
		b.note(all)
		if age, ok := b.age(all); ok && age < b.cfg.Every {
			return b.cfg.Every - age, nil
		}
		if err = b.take(ctx, src, incarnation); err == nil {
			err = b.prune()
		}
	}
	if err != nil {
		b.fail(err)
		return min(b.cfg.Every, retryAfter), err
	}
	return b.cfg.Every, nil
}

// backup is one in the directory.
type backup struct {
	name  string
	taken time.Time
	bytes int64
}

func (b *Backups) prefix() string { return fmt.Sprintf("metadata-%x-", b.cfg.Cluster[:4]) }

// partName is the file name of an unfinished backup. Two servers never write the same file:
// otherwise the first to finish would rename what the other has half written.
func (b *Backups) partName(taken time.Time) string {
	return b.prefix() + taken.UTC().Format(nameTime) + "." + b.cfg.Node + partSuffix
}

// abandoned reports whether a file, named without the prefix, is the leftover
// of an interrupted backup. Any unfinished backup of this server is one, since the
// server makes one at a time. One of another server must be old.
func (b *Backups) abandoned(rest string, now time.Time) bool {
	rest, isPart := strings.CutSuffix(rest, partSuffix)
	stamp, node, named := strings.Cut(rest, ".")
	taken, err := time.Parse(nameTime, stamp)
	return isPart && named && err == nil && (node == b.cfg.Node || now.Sub(taken) > abandonedAfter)
}

// list returns the cluster's backups, oldest first, preceded by those with a time in the future. It
// removes leftovers of interrupted backups.
func (b *Backups) list() ([]backup, error) {
	if err := b.deps.FS.MkdirAll(b.cfg.Dir); err != nil {
		return nil, err
	}
	names, err := b.deps.FS.List(b.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var out []backup
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, b.prefix())
		if !ok {
			continue
		}
		if b.abandoned(rest, b.deps.Clock.Now()) {
			if err := b.deps.FS.Remove(path.Join(b.cfg.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			continue
		}
		stamp, _ := strings.CutSuffix(rest, suffix)
		taken, err := time.Parse(nameTime, stamp)
		if err != nil || stamp == rest {
			continue // not one of ours
		}
		info, err := b.deps.FS.Stat(path.Join(b.cfg.Dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another server shares the directory
		}
		if err != nil {
			return nil, err
		}
		out = append(out, backup{name, taken, info.Size})
	}
	// If a backup has a time in the future, a clock was ahead. The backup is older than it says,
	// and any newer one replaces it.
	now := b.deps.Clock.Now()
	slices.SortFunc(out, func(x, y backup) int {
		if ahead := yetToCome(x.taken, now); ahead != yetToCome(y.taken, now) {
			return map[bool]int{true: -1, false: 1}[ahead]
		}
		return x.taken.Compare(y.taken)
	})
	return out, nil
}

// yetToCome reports whether a backup's time is too far in the future for any clock close to ours.
func yetToCome(taken, now time.Time) bool { return taken.Sub(now) >= time.Minute }

// age returns the age of the newest backup; false if there is none, or it has a time in the future.
func (b *Backups) age(all []backup) (time.Duration, bool) {
	if len(all) == 0 {
		return 0, false
	}
	now, newest := b.deps.Clock.Now(), all[len(all)-1].taken
	return now.Sub(newest), !yetToCome(newest, now)
}

// take writes one backup. A backup with its final name is complete and synced.
func (b *Backups) take(ctx context.Context, src Source, incarnation moraine.Incarnation) (err error) {
	info, stream, err := src.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	info.Incarnation, info.Taken, info.Horizon = uint64(incarnation), b.deps.Clock.Now(), b.cfg.Horizon
	if err := b.hasRoom(info.Bytes); err != nil {
		return err
	}
	name := path.Join(b.cfg.Dir, b.prefix()+info.Taken.UTC().Format(nameTime)+suffix)
	part := path.Join(b.cfg.Dir, b.partName(info.Taken))
	f, err := b.deps.FS.Open(part, vfs.Create|vfs.Truncate)
	if err != nil {
		return err
	}
	err = errors.Join(b.write(ctx, f, info, stream), f.Close())
	if err == nil {
		err = b.deps.FS.Rename(part, name)
	}
	if err != nil {
		if gone := b.deps.FS.Remove(part); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
		return err
	}
	b.deps.Log.Info("backup taken", "file", name, "bytes", info.Bytes, "applied", info.Applied)
	return b.deps.FS.SyncDir(b.cfg.Dir)
}

// hasRoom fails if a backup of that many bytes would leave too little free space.
func (b *Backups) hasRoom(bytes int64) error {
	u, err := b.deps.FS.Usage(b.cfg.Dir)
	if err != nil || u.Total == 0 {
		return err
	}
	if u.Free < uint64(bytes)+u.Total/spareShare {
		return &moraine.Error{Op: "backup", Ref: b.cfg.Dir, Kind: moraine.NoSpace,
			Err: fmt.Errorf("a backup of %d bytes would leave less than a tenth of the file system free (%d of %d bytes are): make room, or name another directory by --backup-dir", bytes, u.Free, u.Total)}
	}
	return nil
}

// write fills a file with a backup, checks it, and syncs it.
func (b *Backups) write(ctx context.Context, f vfs.File, info raftstore.BackupInfo, stream io.Reader) error {
	out := &appender{f: f}
	w, err := raftstore.NewBackupWriter(out, info)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, &stoppable{ctx, stream}); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if _, err := raftstore.ReadBackup(f, out.at); err != nil {
		return err
	}
	return f.Sync()
}

// prune removes the oldest backups until Keep are left.
func (b *Backups) prune() error {
	all, err := b.list()
	if err != nil {
		return err
	}
	for len(all) > max(b.cfg.Keep, 1) {
		if err := b.deps.FS.Remove(path.Join(b.cfg.Dir, all[0].name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		all = all[1:]
	}
	b.note(all)
	b.mu.Lock()
	b.status.Err = nil
	b.mu.Unlock()
	return b.deps.FS.SyncDir(b.cfg.Dir)
}

// note records the contents of the directory.
func (b *Backups) note(all []backup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status.Kept, b.status.Taken, b.status.Bytes = len(all), time.Time{}, 0
	if len(all) > 0 {
		last := all[len(all)-1]
		b.status.Taken, b.status.Bytes = last.taken, last.bytes
	}
}

func (b *Backups) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status.Err = err
}

// appender writes a file from its beginning.
type appender struct {
	f  vfs.File
	at int64
}

func (a *appender) Write(p []byte) (int, error) {
	n, err := a.f.WriteAt(p, a.at)
	a.at += int64(n)
	return n, err
}

// stoppable reads until its context ends.
type stoppable struct {
	ctx context.Context
	r   io.Reader
}

func (s *stoppable) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}
