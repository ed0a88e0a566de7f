package agent

import (
	"context"
	"fmt"
	"iter"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt/agentproto/fileproto"
)

// lister lists a directory, page by page. It goes on where the page before ended.
type lister struct {
	path, last string
	next       func() (client.DirEntry, error, bool)
	stop       func()
	end        context.CancelFunc
}

func (l *lister) close() {
	if l.stop != nil {
		l.stop()
		l.end()
	}
	*l = lister{}
}

func (l *lister) page(ctx context.Context, fc *client.Client, req *fileproto.List) (*fileproto.ListReply, error) {
	if l.next == nil || l.path != string(req.Path) || l.last != string(req.After) {
		l.close()
		lctx, end := context.WithCancel(context.WithoutCancel(ctx)) // it outlives the request
		l.path, l.last, l.end = string(req.Path), string(req.After), end
		l.next, l.stop = iter.Pull2(fc.ReadDir(lctx, l.path))
	}
	stop := context.AfterFunc(ctx, l.end) // while the request lasts
	defer stop()
	limit := min(max(req.Limit, 0), maxPage)
	if limit == 0 {
		limit = 1000
	}
	reply := &fileproto.ListReply{Entries: []fileproto.Entry{}}
	for len(reply.Entries) < limit {
		e, err, more := l.next()
		if !more {
			break
		}
		if err != nil {
			l.close()
			return nil, fmt.Errorf("list %s: %w", req.Path, err)
		}
		if e.Name > string(req.After) {
			reply.Entries = append(reply.Entries, entryOf(e.Name, e.Attr))
			l.last = e.Name
		}
	}
	return reply, nil
}
