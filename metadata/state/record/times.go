package record

// Changed sets the time of the last change of an inode. The changes of a batch have times before that of its
// entry: one that arrives after a newer change of the inode leaves it the newer time.
func (i *Inode) Changed(now int64) { i.Ctime = max(i.Ctime, now) }
