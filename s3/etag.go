package s3

import (
	"fmt"

	"github.com/morainefs/moraine/transport/wire"
)

// etag names a content: the number of the inode and the generation of its
// content, neither of which is ever given out again. Two reads that see the same
// ETag saw the same bytes, whoever wrote them through whichever door, and a
// listing knows it without another request.
//
// It is not the MD5 of the content, which costs 1.3 CPU seconds a GB, twice what
// the rest of a PUT does, and which a file written through a mount could not
// have. The suffix says so in the one way that clients know: as that of a
// multipart object, it has a dash, and none takes it for an MD5.
func etag(a *wire.Attr) string {
	return fmt.Sprintf("\"%016x%016x-1\"", a.Inode, a.Generation)
}
