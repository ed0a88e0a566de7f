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

// Event is a change below a watched directory, or a sign that changes may have been missed.
type Event struct {
	Kind EventKind
	// Path is relative to the directory; empty for the directory itself. OldPath is the earlier
	// path of a renamed entry. Paths are those at the moment of the event's delivery: a directory
	// above may have been renamed since the change.
	Path, OldPath string
	Inode         moraine.InodeID
	// Type is unknown for a resync, for a removed entry, and for one that no longer exists.
	Type FileType
}

// EventKind is the kind of a change.
type EventKind string

const (
	// EventResync: the program must read the directory again. From here on no change is missed.
	// It is the first event of every watch, and comes again if the service does not know what
	// happened meanwhile.
	EventResync EventKind = "resync"
	// EventCreated: a new name exists. A directory may come with what is below it.
	EventCreated EventKind = "created"
	// EventRemoved: a name and what was below it are removed, or have left the directory.
	EventRemoved EventKind = "removed"
	// EventRenamed: an entry moved from one name to another, both below the directory.
	EventRenamed EventKind = "renamed"
	// EventChanged: content or attributes changed.
	EventChanged EventKind = "changed"
)

// watchWait is how long the service delays the reply to a watch without changes.
const watchWait = 20 * time.Second

var eventKinds = map[wire.WatchKind]EventKind{
	wire.WatchKind_WATCH_CREATED: EventCreated, wire.WatchKind_WATCH_REMOVED: EventRemoved,
	wire.WatchKind_WATCH_RENAMED: EventRenamed, wire.WatchKind_WATCH_CHANGED: EventChanged,
}

// Watch yields the changes below a directory, in their order. It starts with a resync and ends
// when ctx ends or the caller leaves the loop. It may merge several changes of one entry that
// come together into one event. It continues across failovers, and waits as long as the service
// does not answer. An error is the last thing that it yields: the directory was removed, or the
// session may not see it.
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
					Type: fileTypeOf(e.Type)}, nil) {
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
