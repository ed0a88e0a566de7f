package doors_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// A client of its own lists the bucket, independent of all our code, and the test
// compares it with the records of the metadata service.

// audit is the contents of the bucket and of the records.
type audit struct {
	objects map[string]minio.ObjectInfo // by key
	uploads []string                    // unfinished
	records []*wire.Object
}

// look makes an audit. Nothing may change the bucket meanwhile.
func (w *world) look(t *testing.T) *audit {
	t.Helper()
	a := &audit{objects: map[string]minio.ObjectInfo{}, records: w.records(t)}
	prefix := w.config.Prefix + "/"
	for o := range w.direct.Client.ListObjects(t.Context(), w.config.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		require.NoError(t, o.Err)
		if !strings.HasSuffix(o.Key, "/") {
			a.objects[o.Key] = o
		}
	}
	for keyMarker, idMarker := "", ""; ; {
		page, err := w.direct.ListMultipartUploads(t.Context(), w.config.Bucket, prefix, keyMarker, idMarker, "", 1000)
		require.NoError(t, err)
		for _, u := range page.Uploads {
			a.uploads = append(a.uploads, u.Key+"?uploadId="+u.UploadID)
		}
		if !page.IsTruncated {
			return a
		}
		keyMarker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// records returns every object record of the metadata service. Their numbers come
// from a counter, so it requests one after the other until it has as many as there
// are.
func (w *world) records(t *testing.T) (found []*wire.Object) {
	t.Helper()
	tier, err := w.admin.Tier(t.Context())
	require.NoError(t, err)
	root, err := w.admin.Stat(t.Context(), "/")
	require.NoError(t, err)
	of := moraine.ID(root.Inode())
	for n := uint64(1); uint64(len(found)) < tier.Objects; n++ {
		id := moraine.MakeID(of.Partition(), of.Incarnation(), n)
		resp, err := rawclient.Of(w.admin).Meta(t.Context(), &wire.MetaRequest{Op: &wire.MetaRequest_GetObject{GetObject: &wire.GetObject{Object: uint64(id)}}})
		if errors.Is(err, moraine.NotFound) {
			require.Less(t, n, uint64(1_000_000), "%d of %d objects were found", len(found), tier.Objects)
			continue
		}
		require.NoError(t, err)
		found = append(found, resp.GetObject().Object)
	}
	return found
}

// probes is in the keys of probes of the bucket's features.
const probes = "/.moraine/probe/"

// wrong returns the mismatches: unexplained objects and uploads, and records of
// needed objects that are missing.
func (a *audit) wrong() (problems []string) {
	for _, u := range a.uploads {
		if strings.Contains(u, probes) {
			continue // left by a probe whose requests were lost
		}
		problems = append(problems, "orphan upload: "+u)
	}
	known := map[string]*wire.Object{}
	for _, r := range a.records {
		if other := known[r.Key]; other != nil {
			problems = append(problems, fmt.Sprintf("two records of %s: %v, %v", r.Key, other, r))
		}
		known[r.Key] = r
		o, there := a.objects[r.Key]
		switch {
		case r.RefCount == 0: // it will be deleted, or already is
		case !there:
			problems = append(problems, fmt.Sprintf("lost object: %v", r))
		case strings.Trim(o.ETag, `"`) != r.Etag || o.Size != int64(r.Size):
			problems = append(problems, fmt.Sprintf("%s has %d bytes, ETag %s; recorded are %v", r.Key, o.Size, o.ETag, r))
		}
	}
	for key, o := range a.objects {
		if known[key] == nil && !strings.Contains(key, probes) {
			problems = append(problems, fmt.Sprintf("orphan object: %s, %d bytes of %v", key, o.Size, o.LastModified))
		}
	}
	slices.Sort(problems)
	return problems
}

// residueDelay is about how long the metadata service keeps bytes that a moved
// object left at its old key, before a job deletes them.
const residueDelay = 10 * time.Minute

// residue reports whether a job waits to delete what a moved object left.
func residue(j client.Job) bool {
	return j.Kind == client.JobDeleteObject && j.State == client.JobPending &&
		time.Duration(j.NotBefore-j.Created)*time.Millisecond > residueDelay/2
}

// settle waits until no work of the object tier is left.
func (w *world) settle(t *testing.T) {
	t.Helper()
	eventually(t, 3*time.Minute, "the object tier to settle", func() (bool, string) {
		var live []string
		for j, err := range w.admin.Jobs().List(t.Context(), false) {
			require.NoError(t, err)
			if j.Kind != client.JobRepair && !residue(j) {
				live = append(live, fmt.Sprintf("%+v", j))
			}
		}
		tier, err := w.admin.Tier(t.Context())
		require.NoError(t, err)
		return len(live) == 0 && tier.Intents == 0 && tier.UnsettledKeys == 0, strings.Join(append(live, fmt.Sprintf("%+v", tier)), "\n")
	})
}

// move queues a move of paths, and returns its jobs.
func (w *world) move(t *testing.T, kind client.JobKind, paths ...string) []client.Job {
	t.Helper()
	var inodes []moraine.InodeID
	for _, p := range paths {
		a, err := w.admin.Stat(t.Context(), p)
		require.NoError(t, err)
		inodes = append(inodes, a.Inode())
	}
	jobs, err := w.admin.Jobs().Queue(t.Context(), kind, inodes...)
	require.NoError(t, err)
	return jobs
}

// waitJob waits until a job has ended, and returns its final state; the zero Job if
// that is long ago.
func (w *world) waitJob(ctx context.Context, j client.Job) (client.Job, error) {
	if j.ID == 0 {
		return j, nil // there was nothing to do
	}
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		now, err := w.admin.Jobs().Get(ctx, j.ID)
		switch {
		case errors.Is(err, moraine.NotFound):
			return client.Job{}, nil
		case err != nil:
			return client.Job{}, err
		case now.State != client.JobPending && now.State != client.JobRunning:
			return now, nil
		case time.Now().After(deadline):
			return now, fmt.Errorf("the job does not end: %v", now)
		}
	}
}

// jobsOf lists the recent jobs of a file, a line for each.
func (w *world) jobsOf(t *testing.T, inode moraine.InodeID) (lines string) {
	for j, err := range w.admin.Jobs().List(t.Context(), true) {
		require.NoError(t, err)
		if j.Inode == inode {
			lines += fmt.Sprintf("%v\n", j)
		}
	}
	return lines
}

// moved moves paths, and fails the test if that fails.
func (w *world) moved(t *testing.T, kind client.JobKind, paths ...string) {
	t.Helper()
	for _, j := range w.move(t, kind, paths...) {
		ended, err := w.waitJob(t.Context(), j)
		require.NoError(t, err)
		if ended != (client.Job{}) {
			require.Equal(t, client.JobDone, ended.State, "%v", ended)
		}
	}
}

const (
	flush = client.JobFlush
	evict = client.JobEvict
	stage = client.JobStage
)
