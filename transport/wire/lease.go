package wire

// LeaseOver returns the inode whose cache lease covers the attributes of another,
// or 0 for none. For a file it is the directory; for a directory, and for a file
// that ever had two names, the inode itself. The metadata service grants and
// recalls by it, and clients cache by it.
func LeaseOver(inode, parent uint64, directory, manyLinks bool) uint64 {
	if directory || manyLinks {
		return inode
	}
	return parent
}
