package fuse

import "github.com/morainefs/moraine"

// add adds an open file to the table. If it is for writing, the pages of its readers are not
// watched from now on.
func (o *openFiles) add(f *file) (fh uint64) {
	fh = o.files.add(f)
	if f.writes {
		o.pages.written(f.state.inode)
	}
	return fh
}

// endWriting ends the writing of a file that was taken and closed.
func (t *table) endWriting(f *file) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.writes {
		f.state.writers--
	}
}

// isWritten reports whether a file may have bytes here that are not committed.
func (t *table) isWritten(inode moraine.InodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.inodes[inode]
	return s != nil && s.writers > 0
}
