package fsckcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/cmd/moraine/internal/view"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// objectPoll is how often fsck reads the progress of the check of objects.
	objectPoll = 500 * time.Millisecond
	// objectTries is how often fsck starts the check again after a change of the metadata
	// leader.
	objectTries = 5
)

var errLeaders = errors.New("the metadata leader changed during the comparison of the objects: run the " +
	"check again")

// fsckObjects has the hosts compare all objects with their records, and adds each object
// that is missing or differs. It cannot check a bucket that does not answer.
func fsckObjects(ctx context.Context, env *cli.Env, c *cli.Connection, r *fsckResult) error {
	reply, err := awaitObjects(ctx, env, c)
	if errors.Is(err, errLeaders) {
		r.NotChecked = append(r.NotChecked, fsckMissed{Devices: []uint32{}, Why: err.Error()})
		err = nil
	}
	if err != nil {
		return err
	}
	r.Objects = reply.GetGood() + reply.GetBad()
	if n := reply.GetUnknown(); n > 0 {
		r.NotChecked = append(r.NotChecked, fsckMissed{Devices: []uint32{}, Why: fmt.Sprintf("the hosts could not compare %s with the bucket; whether these objects are there is "+
			"unknown: %s",
			cli.CountOf(int(n), "object"), strings.TrimSpace(reply.GetError()))})
	}
	r.BadObjects, err = view.BadObjects(ctx, c)
	for _, b := range r.BadObjects {
		if row, lost := b.Lost(); lost {
			r.addLost([]view.LostRow{row})
		}
	}
	return err
}

// awaitObjects starts a check of all objects, and waits for its end.
func awaitObjects(ctx context.Context, env *cli.Env, c *cli.Connection) (reply *wire.CheckObjectsReply, err error) {
	bar := env.StartBar("objects", 0)
	bar.Plain()
	defer func() { bar.Finish(err) }()
	check := uint64(0)
	for tries := 0; ; {
		begin := check == 0
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CheckObjects{CheckObjects: &wire.CheckObjects{Start: begin}}})
		if err != nil {
			return nil, err
		}
		reply = resp.GetCheckObjects()
		switch {
		case begin, reply.Check > check && reply.Full: // ours, or a later one of another fsck
			check = reply.Check
		case reply.Check != check:
			check = 0
			if tries++; tries == objectTries {
				return nil, errLeaders
			}
			continue
		}
		bar.SetTotal(int64(max(reply.Total, reply.Checked+reply.Unknown)))
		bar.SetDone(int64(reply.Checked + reply.Unknown))
		if reply.Done {
			return reply, nil
		}
		select {
		case <-time.After(objectPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
