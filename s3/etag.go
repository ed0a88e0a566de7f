package s3

import (
	"fmt"
	"strconv"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// etag names a content by the number of the inode and the generation of its
// content, which are never reused. Two reads with the same ETag saw the same bytes,
// whichever interface wrote them. A listing has it without another request.
//
// It is not the MD5 of the content. That costs 1.3 CPU seconds a GB, twice the
// rest of a PUT, and a file written through a mount has none. Like the ETag of
// a multipart object it ends in a dash and a suffix, so no client takes it for
// an MD5.
func etag(a client.Attr) string { return etagOf(a.Inode(), a.Generation()) }

func etagOf(inode moraine.InodeID, generation moraine.Generation) string {
	return fmt.Sprintf("\"%016x%016x-1\"", uint64(inode), uint64(generation))
}

// parseETag returns the content that an ETag names, any content for "*", and false
// for an ETag that is not from this endpoint.
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
	want := client.Expect{Inode: moraine.InodeID(inode), Generation: moraine.Generation(generation)}
	if err != nil || inode == 0 || generation == 0 || s != unquote(etagOf(want.Inode, want.Generation)) {
		return client.Expect{}, false
	}
	return want, true
}
