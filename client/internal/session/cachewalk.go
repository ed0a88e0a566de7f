package session

import (
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/wire"
)

// maxLinks bounds the symbolic links that a walk through the cache follows. Past it the client
// sends a request, and the service reports the error.
const maxLinks = 40

// walk resolves a path from the root as the service would, all as of one moment. It returns
// false if something is not cached.
func (c *cache) walk(root moraine.InodeID, path string, follow bool) (*wire.WalkReply, error, bool) {
	if c == nil {
		return nil, nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable() {
		return nil, nil, false
	}
	w := cacheWalk{c: c, root: uint64(root), follow: follow}
	reply, err := w.walk(path)
	return reply, err, c.count(reply != nil || err != nil)
}

// cacheWalk is a running walk. It follows the same rules as the state machine's.
type cacheWalk struct {
	c      *cache
	root   uint64
	follow bool
	at     *wire.Attr
	parent uint64
	name   string
}

// walk returns neither an answer nor an error if something is not cached.
func (w *cacheWalk) walk(path string) (*wire.WalkReply, error) {
	if !w.jump(w.root) {
		return nil, nil
	}
	links := 0
	for name, rest := moraine.NextName(path); name != ""; name, rest = moraine.NextName(rest) {
		if w.at.Type != wire.FileType_FILE_TYPE_DIRECTORY {
			return nil, nil
		}
		if name == ".." {
			if w.at.Inode != w.root && w.at.Parent != 0 && !w.jump(w.at.Parent) {
				return nil, nil
			}
			continue
		}
		inode, known := w.c.find(w.at.Inode, name)
		last, _ := moraine.NextName(rest)
		switch {
		case !known:
			return nil, nil
		case inode == 0 && last == "":
			return &wire.WalkReply{Parent: w.at.Inode, Name: name}, nil
		case inode == 0:
			return nil, &moraine.Error{Op: "walk", Ref: name, Kind: moraine.NotFound}
		}
		child := w.c.get(inode)
		if child == nil {
			return nil, nil
		}
		if child.Type == wire.FileType_FILE_TYPE_SYMLINK && (last != "" || w.follow) {
			if links++; links > maxLinks || (strings.HasPrefix(child.Target, "/") && !w.jump(w.root)) {
				return nil, nil
			}
			rest = child.Target + "/" + rest
			continue
		}
		w.parent, w.name, w.at = w.at.Inode, name, child
	}
	return &wire.WalkReply{Attr: w.at, Parent: w.parent, Name: w.name, Found: true}, nil
}

// jump goes to a directory that is not an entry of the last one.
func (w *cacheWalk) jump(inode uint64) bool {
	if w.at = w.c.get(inode); w.at == nil {
		return false
	}
	w.parent, w.name = w.at.Parent, ""
	return true
}

// isName reports whether the service takes this path for a single entry.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.Contains(s, "/")
}
