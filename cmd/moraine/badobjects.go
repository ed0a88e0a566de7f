package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
)

// badObject is an object of which the bucket has no copy, or a copy that differs from the
// record.
type badObject struct {
	Object string `json:"object"`
	URL    string `json:"url"`
	// State is missing, differs or corrupt.
	State string `json:"state"`
	Error string `json:"error"`
	// Evicted: some bytes of files are only in this object. Path is the file that the
	// object was made from; it is empty where that file has no name. Others, such as
	// clones, may have bytes in it too.
	Evicted bool        `json:"evicted"`
	Path    string      `json:"path"`
	Inode   string      `json:"inode"`
	Ranges  []lostRange `json:"ranges"`
	More    bool        `json:"more_ranges,omitempty"`
	Others  bool        `json:"other_files"`
	id      uint64
}

var objectStates = map[wire.ObjectState]string{
	wire.ObjectState_OBJECT_STATE_MISSING: "missing", wire.ObjectState_OBJECT_STATE_DIFFERS: "differs", wire.ObjectState_OBJECT_STATE_CORRUPT: "corrupt",
}

// badObjects lists the objects that are missing in their bucket or differ from their
// records.
func badObjects(ctx context.Context, c *cli.Connection) ([]badObject, error) {
	out := []badObject{}
	for after := uint64(0); ; {
		resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListBadObjects{ListBadObjects: &wire.ListBadObjects{After: after}}})
		if err != nil {
			return nil, err
		}
		reply := resp.GetBadObjects()
		for _, w := range reply.GetObjects() {
			after = w.Object.Id
			out = append(out, describeBadObject(w))
		}
		if !reply.GetMore() || len(reply.GetObjects()) == 0 {
			return out, nil
		}
	}
}

func describeBadObject(w *wire.BadObject) badObject {
	b := badObject{Object: moraine.ObjectID(w.Object.Id).String(), URL: "s3://" + w.Object.Bucket + "/" + w.Object.Key, State: objectStates[w.State], Error: w.Error,
		Evicted: w.Evicted, Inode: moraine.InodeID(w.Object.Inode).String(), Ranges: []lostRange{}, More: w.More, Others: w.Others, id: w.Object.Id}
	if w.Path != "" {
		b.Path = "/" + w.Path
	}
	for _, r := range w.Ranges {
		b.Ranges = append(b.Ranges, lostRange{Offset: r.Offset, Bytes: r.Length})
	}
	return b
}

// lost is the line of the object in `cluster lost`; false where its file is whole without
// it.
func (b *badObject) lost() (lostRow, bool) {
	row := lostRow{Path: b.Path, Inode: b.Inode, Ranges: b.Ranges, More: b.More, Object: b.URL, State: b.State, Others: b.Others}
	if len(b.Ranges) == 0 { // a clone has its bytes
		row.Path, row.Inode = "", ""
	}
	return row, b.Evicted
}

// words describes the fault.
func (b *badObject) words() string {
	how := "is missing in the bucket"
	switch b.State {
	case "differs":
		how = "is another object in the bucket than the recorded one"
	case "corrupt":
		how = "has other bytes in the bucket than the recorded ones"
	}
	file := b.Path
	if file == "" {
		file = "a file without a name"
	}
	if !b.Evicted {
		return fmt.Sprintf("%s %s: %s, whose object it is, is whole without it; `moraine flush` "+
			"uploads it again", b.URL, how, file)
	}
	if len(b.Ranges) == 0 {
		file = "clones of " + file
	} else if b.Others {
		file += " and its clones"
	}
	return fmt.Sprintf("%s %s: evicted bytes of %s are only in this object; restore it, or write the "+
		"files again, or remove them", b.URL, how, file)
}

// judgeObjects adds findings for objects that are missing or differ from their records.
func (s *clusterStatus) judgeObjects(c *wire.ClusterReply) {
	if s.LostObjects = c.LostObjects; s.LostObjects > 0 {
		s.worse(healthCritical, "%s not in the bucket as recorded, and evicted files need them to be read: `moraine cluster lost` names the files; put the objects back, or write the files again, or remove them",
			cli.Are(int(s.LostObjects), "object is", "objects are"))
	}
	if s.BadObjects = c.BadObjects; s.BadObjects > 0 {
		s.worse(healthDegraded, "%s not in the bucket as recorded; the files are whole without them: "+
			"`moraine fsck` names them, and `moraine flush` uploads them again",
			cli.Are(int(s.BadObjects), "object is", "objects are"))
	}
}

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
	r.BadObjects, err = badObjects(ctx, c)
	for _, b := range r.BadObjects {
		if row, lost := b.lost(); lost {
			r.addLost([]lostRow{row})
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
		resp, err := c.Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_CheckObjects{CheckObjects: &wire.CheckObjects{Start: begin}}})
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
