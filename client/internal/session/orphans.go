package session

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/transport/wire"
)

// Files are the files that a client has open. Its methods may be called concurrently.
type Files interface {
	// OpenFiles returns the files that are open or being opened. An open counts from before it reads
	// the attributes of the file.
	OpenFiles() []moraine.InodeID
	// Kept says that the session keeps files without a name, or may keep them. Once they are
	// closed they must be released.
	Kept(inodes []moraine.InodeID)
}

// Orphans has the session of a Conn keep open files that lose their names. Its methods may be called
// concurrently.
type Orphans struct {
	m     *Conn
	files Files
	// resuming is set while files may be open of which files does not know yet.
	resuming atomic.Bool
}

// Resumed ends the time in which a client that takes a session over opens again what was open. Until
// then the service hears of nothing that the session keeps, and removes none of it.
func (o *Orphans) Resumed() { o.resuming.Store(false) }

// sawLingered records the last file without a name that a reply named.
func (s *Session) sawLingered(number uint64) {
	for {
		old := s.lingered.Load()
		if number <= old || s.lingered.CompareAndSwap(old, number) {
			return
		}
	}
}

// keepOpen has the session keep the open files that others have removed, if the last renewal named
// a file that lost its name since. The next renewal says that it has done so. Until then the
// service removes none of them.
func (o *Orphans) keepOpen(ctx context.Context) error {
	s := o.m.Current()
	lingered := s.lingered.Load()
	if lingered == s.kept.Load() || o.resuming.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.term/6) // the renewals must go on
	defer cancel()
	if err := o.keep(ctx, s, o.files.OpenFiles()); err != nil {
		return err
	}
	s.kept.Store(lingered)
	return nil
}

// Keep has the current session keep an open file if it has no name. Otherwise, and if the file is gone,
// it does nothing.
func (o *Orphans) Keep(ctx context.Context, inode moraine.InodeID) error {
	return o.keep(ctx, o.m.Current(), []moraine.InodeID{inode})
}

// keep has a session keep those of the inodes that are files without a name.
func (o *Orphans) keep(ctx context.Context, s *Session, inodes []moraine.InodeID) error {
	for batch := range slices.Chunk(inodes, wire.MaxFindOrphans) {
		find := &wire.FindOrphans{}
		for _, i := range batch {
			find.Inodes = append(find.Inodes, uint64(i))
		}
		resp, _, err := o.m.once(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_FindOrphans{FindOrphans: find}}, s, false)
		if err == nil && resp.GetOrphans() == nil {
			err = retry.BadReply("find orphans")
		}
		if err != nil {
			return err
		}
		for found := range slices.Chunk(resp.GetOrphans().GetInodes(), wire.MaxKeep) {
			_, err := o.m.DoUnder(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Keep{Keep: &wire.Keep{Inodes: found}}}, s)
			may := make([]moraine.InodeID, len(found)) // also after an error: the answer may be lost
			for n, i := range found {
				may[n] = moraine.InodeID(i)
			}
			o.files.Kept(may)
			if err != nil {
				return err
			}
		}
	}
	return nil
}
