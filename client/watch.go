package client

import (
	"context"
	"iter"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client/internal/retry"
	"github.com/morainefs/moraine/client/internal/session"
	"github.com/morainefs/moraine/transport/wire"
)

// Event is a change below a watched directory, or that changes may have been
// missed.
type Event struct {
	Kind EventKind
	// Path is below the directory; empty for the directory itself. OldPath is that of
	// what was renamed. Paths are those of the moment at which the event is told: a
	// directory above may have been renamed since the change.
	Path, OldPath string
	Inode         moraine.InodeID
	// Type is not known of a resync, of what was removed, and of what is gone by now.
	Type wire.FileType
}

// EventKind is what happened.
type EventKind string

const (
	// EventResync: look at the directory anew. From here on nothing is missed. It is
	// the first event of every watch, and comes again where the service cannot tell
	// what happened meanwhile.
	EventResync EventKind = "resync"
	// EventCreated: a name is there that was not. A directory may come with what is
	// below it.
	EventCreated EventKind = "created"
	// EventRemoved: a name is gone, with what was below it, or has left the directory.
	EventRemoved EventKind = "removed"
	// EventRenamed: from one name to another, both below the directory.
	EventRenamed EventKind = "renamed"
	// EventChanged: content or attributes.
	EventChanged EventKind = "changed"
)

// watchWait is how long the service holds a question that it has no answer to.
const watchWait = 20 * time.Second

var eventKinds = map[wire.WatchKind]EventKind{
	wire.WatchKind_WATCH_CREATED: EventCreated, wire.WatchKind_WATCH_REMOVED: EventRemoved,
	wire.WatchKind_WATCH_RENAMED: EventRenamed, wire.WatchKind_WATCH_CHANGED: EventChanged,
}

// Watch returns the changes below a directory, in their order, from the moment of
// its first event, a resync, until ctx ends or the loop is left. Several changes of
// one thing that come together may be told as one. It goes on across failovers,
// and waits as long as the service does not answer. An error is the last thing that
// it yields: the directory is gone, or may not be seen.
func (c *Client) Watch(ctx context.Context, path string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		a, err := c.paths.find(ctx, path, true)
		if err != nil {
			yield(Event{}, retry.Wrap("client.Watch", path, err))
			return
		}
		after, incarnation := uint64(0), uint64(0)
		for try := 0; ; try++ {
			r, err := watchOnce(ctx, c.meta, &wire.Watch{Directory: a.Inode, After: after, Incarnation: incarnation})
			switch {
			case err == nil:
				try = -1
			case ctx.Err() == nil && retry.IsTransient(err) && retry.Pause(ctx, c.clock, try):
				continue
			default:
				yield(Event{}, retry.Wrap("client.Watch", path, err))
				return
			}
			if r.Resync && !yield(Event{Kind: EventResync, Inode: moraine.InodeID(a.Inode)}, nil) {
				return
			}
			for _, e := range r.Events {
				if !yield(Event{Kind: eventKinds[e.Kind], Path: e.Path, OldPath: e.OldPath, Inode: moraine.InodeID(e.Inode),
					Type: e.Type}, nil) {
					return
				}
			}
			after, incarnation = r.Next, r.Incarnation
		}
	}
}

func watchOnce(ctx context.Context, meta *session.Conn, op *wire.Watch) (*wire.WatchReply, error) {
	op.WaitMillis = uint32(watchWait.Milliseconds())
	resp, err := meta.Do(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_Watch{Watch: op}})
	if err == nil && resp.GetWatch() == nil {
		err = retry.BadReply("watch")
	}
	return resp.GetWatch(), err
}
