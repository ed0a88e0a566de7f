package record

import "github.com/morainefs/moraine"

// Cloning a tree is a job that the leader runs in pieces. It builds the new tree below a directory
// without name or parent, which nobody can see. A piece clones the next entries of one source
// directory and records the last name in that directory's row, so that a repeated piece continues
// from there. The last piece names the tree. If that is impossible, or the job is canceled, the new
// tree is removed like any removed tree.
//
// Each file is cloned whole, as it is at its turn. A file with more tables than one piece may share
// restarts if it changes between two pieces.

// TreeClone is the cursor of a CLONE_TREE job.
type TreeClone struct {
	Top    moraine.InodeID // of the new tree
	Parent moraine.InodeID // where the tree will appear
	Name   string
	// Snapshot seals each inode of the new tree.
	Snapshot bool
	FileClone
}

// FileClone is the file in progress of a job that clones files, if it has more tables than one piece
// may share. Zero: none.
type FileClone struct {
	From, Into moraine.InodeID
	Generation moraine.Generation // of From
	UpTo       int64              // tables that end at or before this offset are shared
}

func (f *FileClone) fields(c *codec) {
	fixed64(c, &f.From)
	fixed64(c, &f.Into)
	fixed64(c, &f.Generation)
	uvarint(c, &f.UpTo)
}

const treeCloneVersion = 1

// Encode returns the stored value.
func (t *TreeClone) Encode() []byte { return t.fields(encoder(64 + len(t.Name))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (t *TreeClone) Decode(b []byte) error { return t.fields(decoder(b)).End("clone of a tree") }

func (t *TreeClone) fields(c *codec) *codec {
	c.version(treeCloneVersion)
	fixed64(c, &t.Top)
	fixed64(c, &t.Parent)
	c.string(&t.Name)
	c.bool(&t.Snapshot)
	t.FileClone.fields(c)
	return c
}

// ClonedDir is the row of a source directory that the job has not finished.
type ClonedDir struct {
	Into moraine.InodeID // its copy in the new tree
	Last string          // last name cloned
}

// Encode returns the stored value.
func (d *ClonedDir) Encode() []byte { return d.fields(encoder(16 + len(d.Last))).B }

// Decode reads a stored value into the receiver; a damaged value is Corrupt.
func (d *ClonedDir) Decode(b []byte) error { return d.fields(decoder(b)).End("directory of a clone") }

func (d *ClonedDir) fields(c *codec) *codec {
	c.version(treeCloneVersion)
	fixed64(c, &d.Into)
	c.string(&d.Last)
	return c
}
