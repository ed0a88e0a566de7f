package fuse

import (
	"sort"
	"sync"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
)

// dir is an open directory. The kernel continues from an offset: the number of the
// entry, counted from 1 with "." and "..". The metadata service continues from a
// name. The names of the last answer join them, and a mark at the beginning of each
// earlier answer. So seekdir finds any place again, exactly unless the directory
// was changed in between.
type dir struct {
	inode moraine.InodeID

	mu    sync.Mutex
	marks []mark
	last  []string // names in the last answer
	first uint64   // offset of the first of them
}

// mark says that the entries after name begin at an offset.
type mark struct {
	offset uint64
	name   string
}

// dots is how many entries a directory has before those of the metadata service.
const dots = 2

// start returns the name after which the answer to offset begins, and how many
// entries to skip.
func (d *dir) start(offset uint64) (after string, skip uint64) {
	if offset <= dots {
		d.marks = append(d.marks[:0], mark{offset: dots})
		d.last = nil
		return "", 0
	}
	if i := offset - d.first; offset > d.first && i <= uint64(len(d.last)) {
		return d.last[i-1], 0
	}
	i := sort.Search(len(d.marks), func(i int) bool { return d.marks[i].offset > offset })
	if i == 0 {
		return "", offset - dots
	}
	return d.marks[i-1].name, offset - d.marks[i-1].offset
}

// answered records the names in the answer to offset, all after a name.
func (d *dir) answered(offset uint64, after string, names []string) {
	d.first, d.last = offset, names
	if n := len(d.marks); n == 0 || d.marks[n-1].offset < offset {
		d.marks = append(d.marks, mark{offset: offset, name: after})
	}
}

// nameBytes estimates how many bytes the name of an entry adds to the least entry, from the last
// answer. An answer that asks for more entries than fit makes the service read them twice.
func (d *dir) nameBytes() int {
	if len(d.last) == 0 {
		return 0
	}
	sum := 0
	for _, name := range d.last {
		sum += len(name)
	}
	return (max(0, sum/len(d.last)-leastName) + leastName - 1) &^ (leastName - 1)
}

// dirTable is the open directories.
type dirTable struct {
	mu   sync.Mutex
	next uint64
	open map[uint64]*dir
}

func (t *dirTable) init() { t.open = map[uint64]*dir{} }

func (t *dirTable) get(fh uint64) *dir {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[fh]
}

// adopt adds a directory that a daemon before opened. It continues by the number of entries.
func (t *dirTable) adopt(fh uint64, inode moraine.InodeID) *dir {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[fh] == nil {
		t.open[fh] = &dir{inode: inode}
	}
	return t.open[fh]
}

// directories answers the requests about open directories.
type directories struct {
	*calls
	dirs   dirTable
	opened *openFiles
}

// OpenDir implements gofuse.RawFileSystem.
func (ds *directories) OpenDir(_ <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	ds.dirs.mu.Lock()
	defer ds.dirs.mu.Unlock()
	ds.dirs.next++
	ds.dirs.open[ds.dirs.next] = &dir{inode: ds.inode(in.NodeId)}
	out.Fh = ds.dirs.next
	return gofuse.OK
}

// ReleaseDir implements gofuse.RawFileSystem.
func (ds *directories) ReleaseDir(in *gofuse.ReleaseIn) {
	ds.dirs.mu.Lock()
	defer ds.dirs.mu.Unlock()
	delete(ds.dirs.open, in.Fh)
}

// FsyncDir implements gofuse.RawFileSystem. A change of a directory is durable when its call
// returns, unless the directory is delegated to the client.
func (ds *directories) FsyncDir(cancel <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	ctx, done := ds.request(cancel, &in.InHeader)
	defer done()
	return status(ds.client.Inodes().Sync(ctx, ds.inode(in.NodeId)))
}

// ReadDir implements gofuse.RawFileSystem.
func (ds *directories) ReadDir(cancel <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return ds.readDir(cancel, in, direntBytes, func(e gofuse.DirEntry, _ client.Attr) bool { return out.AddDirEntry(e) })
}

// ReadDirPlus implements gofuse.RawFileSystem. The attributes are current: answers
// never come from an earlier fetch. Attributes of files that are being written here
// are omitted, since the metadata service does not know them. So are those of all entries but the
// first maxAttributes: the kernel makes an inode of each entry with attributes, which takes 1 KiB.
// READDIRPLUS_AUTO would bound that too, but the kernel would then look up the files of small
// directories one by one for programs that read all names before they look at files (du, rm, find).
func (ds *directories) ReadDirPlus(cancel <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return ds.readDir(cancel, in, direntPlusBytes, func(e gofuse.DirEntry, a client.Attr) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil || a.Inode() == 0 || e.Off > dots+maxAttributes {
			return entry != nil
		}
		if f := ds.opened.files.of(a.Inode()); f == nil || !f.writes {
			ds.fillEntry(a, entry)
			ds.opened.lendEntry(ds.inode(in.NodeId), e.Name, a, entry)
		}
		return true
	})
}

// maxAttributes is how many entries of a directory get attributes in one listing.
const maxAttributes = 4096

// The least bytes of an entry in an answer. Names are padded to multiples of leastName.
const (
	leastName       = 8
	direntBytes     = 32
	direntPlusBytes = 160
	maxDirPage      = 1000 // entries that the metadata service returns at once
)

// readDir answers with as many entries as fit. add returns whether an entry fits;
// "." and ".." come without attributes.
func (ds *directories) readDir(cancel <-chan struct{}, in *gofuse.ReadIn, entryBytes int, add func(gofuse.DirEntry, client.Attr) bool) gofuse.Status {
	d := ds.dirs.get(in.Fh)
	if d == nil && ds.opened.files.state != nil {
		d = ds.dirs.adopt(in.Fh, ds.inode(in.NodeId))
	}
	if d == nil {
		return gofuse.EBADF
	}
	ctx, done := ds.request(cancel, &in.InHeader)
	defer done()
	d.mu.Lock()
	defer d.mu.Unlock()
	offset := in.Offset
	for ; offset < dots; offset++ {
		dot := gofuse.DirEntry{Name: "..."[:offset+1], Ino: uint64(d.inode), Mode: fileType(client.TypeDirectory), Off: offset + 1}
		if !add(dot, client.Attr{}) {
			return gofuse.OK
		}
	}
	after, skip := d.start(offset)
	limit := min(uint64(int(in.Size)/(entryBytes+d.nameBytes())+1)+skip, maxDirPage)
	first, at := after, offset
	var names []string
	for {
		page, err := ds.client.Inodes().ReadDirPage(ctx, d.inode, after, int(limit))
		if err != nil {
			return nodeStatus(err)
		}
		for i := range page.Len() {
			e := page.Entry(i)
			after = e.Name
			if e.Attr.IsDir() && moraine.IsHidden(e.Name) {
				continue // programs that copy a tree do not copy its snapshots and its trash
			}
			if skip > 0 {
				skip--
				first = e.Name
				continue
			}
			a := e.Attr
			if !add(gofuse.DirEntry{Name: e.Name, Ino: entryNumber(e.Name, a), Mode: fileType(a.Type()), Off: at + 1}, a) {
				d.answered(offset, first, names)
				return gofuse.OK
			}
			at++
			names = append(names, e.Name)
		}
		// An answer without entries means the end of the directory; a partly filled
		// one is harmless.
		if len(names) > 0 || !page.More() || page.Len() == 0 {
			d.answered(offset, first, names)
			return gofuse.OK
		}
	}
}

// entryNumber is the inode number of an entry in a listing. For a checkpoint's
// index it is the smallest possible number, and not its own. rm and find remove the
// files of a directory with more than 10,000 of them in the order of these numbers.
// The index must go first.
func entryNumber(name string, a client.Attr) uint64 {
	if a.Sealed() && name == ckpt.IndexName && a.IsRegular() {
		return 1
	}
	return uint64(a.Inode())
}
