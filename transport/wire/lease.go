package wire

// LeaseOver returns the inode whose lease covers the attributes of another, 0 for
// none: that of the directory of a file; of a directory, and of a file that ever had
// two names, its own. The service grants and recalls by it, and clients cache by it.
func LeaseOver(inode, parent uint64, directory, manyLinks bool) uint64 {
	if directory || manyLinks {
		return inode
	}
	return parent
}
