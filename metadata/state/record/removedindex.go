package record

import "strings"

// A bucket that has the index of a checkpoint has all of it, also while the checkpoint is
// being removed: the objects of its other files are deleted once the store has confirmed that
// the index's is gone. A row says of the directory of a bucket, as keys have it, which key in
// it is the index of a removed checkpoint; the row goes when that key is nobody's any more.

const removedIndexVersion = 1

// Beside is the directory that a key is in.
func (p Place) Beside() Place {
	return Place{p.Bucket, p.Key[:strings.LastIndexByte(p.Key, '/')+1]}
}

// EncodeRemovedIndex returns the row of a directory: the key of the index in it.
func EncodeRemovedIndex(key string) []byte {
	return PutString(newValue(removedIndexVersion, 2+len(key)), key)
}

func DecodeRemovedIndex(b []byte) (key string, err error) {
	d := Dec{B: b}
	d.Version(removedIndexVersion)
	key = d.string()
	return key, d.End("removed index")
}
