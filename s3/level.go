package s3

import (
	"context"
	"errors"
	"fmt"

	"github.com/valyala/fasthttp"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// AckHeader is the request header that names the level that the answer waits for,
// nvme or memory, instead of Config.Level. It applies to PutObject, UploadPart and
// their copies, and CompleteMultipartUpload.
const AckHeader = "X-Moraine-Ack"

// levelOf returns the level at which a request is answered. If memory would protect
// its bytes from no failure, as with a single host, that is nvme: an S3 client
// could not be warned.
func (reqs *requests) levelOf(rc context.Context) (moraine.Level, error) {
	level := reqs.level
	if r, ok := rc.(*fasthttp.RequestCtx); ok {
		if asked := string(r.Request.Header.Peek(AckHeader)); asked != "" {
			var err error
			if level, err = moraine.ParseLevel(asked); err != nil || (level != moraine.NVMe && level != moraine.Memory) {
				return 0, &moraine.Error{Op: "s3", Ref: AckHeader, Kind: moraine.InvalidArgument, Err: fmt.Errorf("invalid level %q: use nvme or memory", asked)}
			}
		}
	}
	if level == moraine.Memory && reqs.cl.SingleHost(reqs.life) {
		level = moraine.NVMe
	}
	return level, nil
}

// protected returns when the bytes of a commit are protected from the loss of at
// least one host, or on their devices. A commit at level memory may report that it
// protects from no failure. That happens when only one host is left and the client
// does not know it yet.
func (objs *objects) protected(ctx context.Context, done client.CommitResult) error {
	if done.Protects > 0 {
		return nil
	}
	return objs.reach(ctx, done.Attr, moraine.NVMe)
}

// reach returns when a file is at a level: a file that shares the bytes of another
// may begin below it.
func (objs *objects) reach(ctx context.Context, attr client.Attr, level moraine.Level) error {
	if level < moraine.NVMe || attr.Stored() == 0 || attr.Level() >= level {
		return nil
	}
	err := objs.tree.cl.Inodes().WaitNVMe(ctx, attr.Inode())
	if errors.Is(err, moraine.NotFound) {
		return nil // it was visible, and was replaced or deleted since
	}
	return err
}
