package s3

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// A listing is in the byte order of whole keys. A directory's entries come in
// the order of their names, which differs. The directory "a" comes before the
// file "a-b", but the keys below it, "a/...", after. So a directory waits until
// the names have passed "a/". Waiting directories are prefixes of the current
// name, so there are never more than a name has bytes. One pass over each
// directory suffices, from wherever the listing continues.

// walker yields the keys of a bucket that have a prefix and come after a key. It
// reads no more of the bucket than it must.
type walker struct {
	tree   *tree
	ctx    context.Context
	bucket string
	prefix string
	after  string // keys up to here are left out
	fold   bool   // a directory is one item, under its key; the walk does not enter it
	yield  func(item) bool
}

// item is a key of a listing or, if folded is set, the common prefix of the keys of
// a directory.
type item struct {
	key    string
	attr   client.Attr
	folded bool
}

// errStop ends a walk whose caller has enough.
var errStop = errors.New("enough")

// walk calls yield for each item in order, until it returns false.
func (w *walker) walk() error {
	at := w.prefix[:strings.LastIndexByte(w.prefix, '/')+1]
	dir := path.Join(bucketPath(w.bucket), at)
	if at != "" && (path.Clean(at)+"/" != at || at[0] == '/') {
		return nil // no key can begin this way
	}
	if at == uploadsDir+"/" || strings.HasPrefix(at, uploadsDir+"/") {
		return nil
	}
	attr, err := w.tree.cl.Stat(w.ctx, dir)
	if errors.Is(err, moraine.NotFound) || errors.Is(err, moraine.NotDirectory) {
		return nil
	}
	if err != nil || !attr.IsDir() {
		return err
	}
	if at == w.prefix && at != "" {
		err = w.ownKey(attr, at)
	}
	if err == nil {
		err = w.dir(attr, at)
	}
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// put yields one item, unless the listing begins after it.
func (w *walker) put(it item) error {
	if it.key > w.after && !w.yield(it) {
		return errStop
	}
	return nil
}

// ownKey yields the key of a directory that was put as an object.
func (w *walker) ownKey(attr client.Attr, key string) error {
	if key <= w.after {
		return nil
	}
	r, err := w.tree.readRecord(w.ctx, attr.Inode())
	if err != nil || r.Directory != dirObject {
		return err
	}
	return w.put(item{key: key, attr: attr})
}

// dir walks the directory whose keys begin with at.
func (w *walker) dir(attr client.Attr, at string) error {
	rest, within := strings.CutPrefix(w.after, at)
	if !within {
		if w.after > at {
			return nil // everything that begins with at is before it
		}
		rest = ""
	}
	d := dirWalk{w: w, inode: attr.Inode(), at: at, rest: rest}
	if p, ok := strings.CutPrefix(w.prefix, at); ok {
		d.partial = p
	}
	return d.run()
}

// dirWalk is the walk of one directory.
type dirWalk struct {
	w       *walker
	inode   moraine.InodeID
	at      string
	rest    string // of walker.after, below at
	partial string // names begin this way
	waiting []waitingDir
}

// waitingDir is a directory whose turn has not come.
type waitingDir struct {
	key  string // its name and a slash
	attr client.Attr
	link bool // reached through a symbolic link
}

func (d *dirWalk) run() error {
	start, err := d.seed()
	if err != nil {
		return err
	}
	for e, err := range d.w.tree.cl.Inodes().ReadDirAfter(d.w.ctx, d.inode, start) {
		if errors.Is(err, moraine.NotFound) {
			return nil // it was removed meanwhile
		}
		if err != nil {
			return err
		}
		if e.Name > d.partial && !strings.HasPrefix(e.Name, d.partial) {
			break
		}
		if err := d.entry(e.Name, e.Attr); err != nil {
			return err
		}
	}
	return d.enter("")
}

// seed looks up the entries that the pass over the directory does not reach: their
// names come before its start, but their keys do not. These are directories whose
// name is a prefix of the start.
func (d *dirWalk) seed() (start string, err error) {
	start, _, _ = strings.Cut(d.rest, "/")
	for i := 1; i < len(start); i++ {
		if start[i] < '/' {
			if err := d.lookup(start[:i]); err != nil {
				return "", err
			}
		}
	}
	if d.partial > start {
		if err := d.lookup(d.partial); err != nil {
			return "", err
		}
		return d.partial, nil
	}
	if start == "" {
		return "", nil
	}
	return start, d.lookup(start)
}

// lookup takes an entry by its name, if it exists.
func (d *dirWalk) lookup(name string) error {
	if !strings.HasPrefix(name, d.partial) || len(name) > maxName || name == "." || name == ".." {
		return nil
	}
	attr, err := d.w.tree.cl.Inodes().Lookup(d.w.ctx, d.inode, name)
	if errors.Is(err, moraine.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.entry(name, attr)
}

// entry takes the next entry in order of name: a file is an item, and a directory
// waits. A name that is not UTF-8 is no key (parseKey). XML cannot hold it, and clients
// of S3 fail on the whole page that has it in the encoding of a URL.
func (d *dirWalk) entry(name string, attr client.Attr) error {
	if attr.IsDir() && moraine.IsHidden(name) || d.at == "" && name == uploadsDir || !strings.HasPrefix(name, d.partial) || !utf8.ValidString(name) {
		return nil
	}
	if err := d.enter(name); err != nil {
		return err
	}
	link := attr.IsSymlink()
	if link {
		target, err := d.w.tree.cl.Stat(d.w.ctx, path.Join(bucketPath(d.w.bucket), d.at, name))
		if err != nil {
			return ignoreDangling(err)
		}
		attr = target
	}
	switch attr.Type() {
	case client.TypeDirectory:
		d.waiting = append(d.waiting, waitingDir{name + "/", attr, link})
	case client.TypeRegular:
		return d.w.put(item{key: d.at + name, attr: attr})
	}
	return nil
}

// ignoreDangling ignores a symbolic link that leads nowhere, or in a circle.
func ignoreDangling(err error) error {
	switch moraine.KindOf(err) {
	case moraine.NotFound, moraine.NotDirectory, moraine.InvalidArgument, moraine.PermissionDenied:
		return nil
	}
	return err
}

// enter walks the waiting directories whose keys come before a name, or all if the
// name is empty.
func (d *dirWalk) enter(name string) error {
	slices.SortFunc(d.waiting, func(a, b waitingDir) int { return strings.Compare(a.key, b.key) })
	for len(d.waiting) > 0 && (name == "" || d.waiting[0].key < name) {
		next := d.waiting[0]
		d.waiting = d.waiting[1:]
		if err := d.descend(next); err != nil {
			return err
		}
	}
	return nil
}

func (d *dirWalk) descend(next waitingDir) error {
	w, key := d.w, d.at+next.key
	if w.fold {
		return w.folded(next, key)
	}
	if next.link {
		return nil // its target is listed at its own place
	}
	if err := w.ownKey(next.attr, key); err != nil {
		return err
	}
	return w.dir(next.attr, key)
}

// folded yields a directory as one item. If the listing continues in the middle of
// the directory, it is an item only if something in it comes after.
func (w *walker) folded(next waitingDir, key string) error {
	if strings.HasPrefix(w.after, key) && w.after != key {
		more := false
		deep := &walker{tree: w.tree, ctx: w.ctx, bucket: w.bucket, prefix: key, after: w.after, yield: func(item) bool { more = true; return false }}
		if err := deep.dir(next.attr, key); err != nil && !errors.Is(err, errStop) {
			return err
		}
		if more && !w.yield(item{key: key, attr: next.attr, folded: true}) {
			return errStop
		}
		return nil
	}
	return w.put(item{key: key, attr: next.attr, folded: true})
}
