package s3

import (
	"fmt"
	"strconv"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
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

// parseETag returns the content that an ETag names, any content for "*", and false for
// what is no ETag of this endpoint.
func parseETag(s string) (client.Expect, bool) {
	s = unquote(s)
	if s == "*" {
		return client.Expect{}, true
	}
	if len(s) != 34 {
		return client.Expect{}, false
	}
	inode, err := strconv.ParseUint(s[:16], 16, 64)
	if err != nil {
		return client.Expect{}, false
	}
	generation, err := strconv.ParseUint(s[16:32], 16, 64)
	if err != nil || inode == 0 || generation == 0 || s != unquote(etag(&wire.Attr{Inode: inode, Generation: generation})) {
		return client.Expect{}, false
	}
	return client.Expect{Inode: moraine.InodeID(inode), Generation: moraine.Generation(generation)}, true
}
