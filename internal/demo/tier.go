package demo

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/devcluster"
	"github.com/morainefs/moraine/internal/llama"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/tiers/object"
	"github.com/morainefs/moraine/transport/wire"
)

const (
	// grace is how long the cluster of the demo keeps dead chunks.
	grace = 2 * time.Second
	// poll is the interval of checks of a job or a device; the mover that flushes
	// must be caught in the middle.
	poll = 20 * time.Millisecond
	// tierPatience limits each wait for the object tier.
	tierPatience = 10 * time.Minute
	// middleFrom and middleTo are the share of a part that is in the bucket when
	// the mover is killed.
	middleFrom, middleTo = 0.2, 0.8
	// evictedPart is the share of their earlier bytes that the chunkservers may
	// hold after everything was evicted: bytes that are no file's content.
	evictedPart = 0.01
)

// savedSteps are the existing steps of the run.
var savedSteps = []uint64{1, 2}

// file is one regular file of the run.
type file struct {
	path string
	attr client.Attr
}

// files lists the files of the run, by their own paths.
func (d *demo) files(ctx context.Context) (files []file, bytes uint64, err error) {
	err = d.client.Walk(ctx, runPath, func(p string, a client.Attr) error {
		if a.IsRegular() {
			files, bytes = append(files, file{p, a}), bytes+uint64(a.Size())
		}
		return nil
	})
	return files, bytes, err
}

// moveRun queues a move of the whole run.
func (d *demo) moveRun(ctx context.Context, kind client.JobKind) error {
	run, err := d.client.Stat(ctx, runPath)
	if err != nil {
		return err
	}
	_, err = d.client.Jobs().Queue(ctx, kind, run.Inode())
	return err
}

// untilFiles waits until reached holds for every file of the run.
func (d *demo) untilFiles(ctx context.Context, what string, reached func(client.Attr) bool) error {
	return until(ctx, what, 10*poll, func(ctx context.Context) (bool, error) {
		files, bytes, err := d.files(ctx)
		var done uint64
		left := 0
		for _, f := range files {
			if reached(f.attr) {
				done += uint64(f.attr.Size())
			} else {
				left++
			}
		}
		d.cfg.Progress(what, float64(done)/float64(max(bytes, 1)))
		return err == nil && left == 0, err
	})
}

// until polls until so is true.
func until(ctx context.Context, what string, every time.Duration, so func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, tierPatience)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		ok, err := so(ctx)
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}

// flushWhileTheMoverDies is step 8: everything goes to the bucket, and a
// chunkserver whose mover is in the middle of an upload is killed.
func (d *demo) flushWhileTheMoverDies(ctx context.Context) error {
	d.cfg.Say("\n8. Everything is flushed to the bucket, and a mover in the middle of an upload is killed.")
	start := time.Now()
	if err := d.moveRun(ctx, client.JobFlush); err != nil {
		return err
	}
	job, err := d.killMover(ctx)
	if err != nil {
		return err
	}
	part := float64(job.Done) / float64(job.Total)
	d.cfg.Say("  SIGKILL to %s with %.0f%% of %s in the bucket", job.Holder, 100*part, path.Base(job.Subject))
	if err := d.untilFiles(ctx, "flushed", func(a client.Attr) bool { return a.Clean() }); err != nil {
		return err
	}
	wall := time.Since(start)
	ended, err := d.client.Jobs().Get(ctx, job.ID)
	if err != nil {
		return err
	}
	_, bytes, err := d.files(ctx)
	if err != nil {
		return err
	}
	d.cfg.Say("  %s continued it; %.2f GiB flushed after %v", ended.Holder, gib(int64(bytes)), wall.Round(time.Millisecond))
	d.claim("8", "a flush survives SIGKILL of the mover that uploads",
		part >= middleFrom && part <= middleTo && ended.State == client.JobDone && ended.Holder != job.Holder && ended.Attempts > job.Attempts,
		"%s killed at %.0f%% of a part, %s continued, %.2f GiB flushed in %v", job.Holder, 100*part, ended.Holder, gib(int64(bytes)), wall.Round(time.Millisecond))
	if err := d.inTheBucket(ctx); err != nil {
		return err
	}
	if err := d.cluster.Node(job.Holder).Start(); err != nil {
		return err
	}
	return d.cluster.Node(job.Holder).Ready(ctx)
}

// killMover waits for a flush that is in its middle, by the progress that its mover
// reported, and kills that process. It returns the last seen state of the job.
func (d *demo) killMover(ctx context.Context) (client.Job, error) {
	var job client.Job
	err := until(ctx, "a flush in its middle", poll, func(ctx context.Context) (bool, error) {
		for j, err := range d.client.Jobs().List(ctx, false) {
			if err != nil {
				return false, err
			}
			part := float64(j.Done) / float64(max(j.Total, 1))
			if j.Kind == client.JobFlush && j.State == client.JobRunning && part >= middleFrom && part <= middleTo {
				job = j
				return true, d.cluster.Node(j.Holder).Kill()
			}
		}
		return false, nil
	})
	return job, err
}

// inTheBucket reads the objects directly from the bucket, as any program would.
func (d *demo) inTheBucket(ctx context.Context) error {
	node := d.cluster.Nodes(devcluster.ObjectServer)[0]
	keys, err := object.LoadKeys(node.KeysFile())
	if err != nil {
		return err
	}
	s3, err := dialS3(node.Address, keys.Access, keys.Secret)
	if err != nil {
		return err
	}
	files, _, err := d.files(ctx)
	if err != nil {
		return err
	}
	whole, err := d.sameKeys(ctx, s3, files)
	if err != nil {
		return err
	}
	start := time.Now()
	for _, step := range savedSteps {
		digest, err := d.stepInBucket(ctx, s3, step)
		if err != nil {
			return err
		}
		d.cfg.Say("  step %d saved %s\n   in the bucket %s", step, d.digests[step], digest)
		whole = whole && digest == d.digests[step]
	}
	for _, f := range files {
		same, err := d.sameObject(ctx, s3, f)
		if err != nil {
			return err
		}
		whole = whole && same
	}
	d.claim("8", "the bucket alone holds both steps, as plain objects by their paths", whole,
		"%d objects, read by minio-go in %v, digests %s %s", len(files), time.Since(start).Round(time.Millisecond), d.digests[1], d.digests[2])
	return nil
}

// sameKeys reports whether the bucket holds one object for each file, under its
// path, and no unfinished upload.
func (d *demo) sameKeys(ctx context.Context, s3 *minio.Client, files []file) (bool, error) {
	var want, have []string
	for _, f := range files {
		want = append(want, strings.TrimPrefix(f.path, "/"))
	}
	for o := range s3.ListObjects(ctx, devcluster.LocalBucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			return false, o.Err
		}
		have = append(have, o.Key)
	}
	open := 0
	for u := range s3.ListIncompleteUploads(ctx, devcluster.LocalBucket, "", true) {
		if u.Err != nil {
			return false, u.Err
		}
		open++
	}
	slices.Sort(want)
	slices.Sort(have)
	d.cfg.Say("  %d files, %d objects, %d uploads left open", len(want), len(have), open)
	return slices.Equal(want, have) && open == 0, nil
}

// stepInBucket is the digest of a step by the contents of its objects.
func (d *demo) stepInBucket(ctx context.Context, s3 *minio.Client, step uint64) (string, error) {
	var sums []llama.Sum
	at := map[string]int64{}
	for rank := range saveRanks {
		link, err := d.client.Lstat(ctx, fmt.Sprintf("%s/step-%d", runPath, step))
		if err != nil {
			return "", err
		}
		key := path.Join(runPath, link.Target(), path.Base(partPath(int(step), rank)))
		err = readObject(ctx, s3, devcluster.LocalBucket, key, func(r io.Reader, size int64) error {
			part, err := partSums(r, size, at)
			sums = append(sums, part...)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return llama.Digest(llama.Demo(), sums)
}

// sameObject compares the object of a file that is no part with the file.
func (d *demo) sameObject(ctx context.Context, s3 *minio.Client, f file) (bool, error) {
	if strings.HasSuffix(f.path, ".safetensors") {
		return true, nil // its tensors were compared
	}
	r, err := d.client.OpenFile(ctx, f.path)
	if err != nil {
		return false, err
	}
	defer r.Close()
	want, got := sha256.New(), sha256.New()
	if _, err := io.Copy(want, r.NewStream(ctx, 0)); err != nil {
		return false, err
	}
	err = readObject(ctx, s3, devcluster.LocalBucket, f.path, func(r io.Reader, _ int64) error {
		_, err := io.Copy(got, r)
		return err
	})
	return string(want.Sum(nil)) == string(got.Sum(nil)), err
}

func readObject(ctx context.Context, s3 *minio.Client, bucket, key string, read func(r io.Reader, size int64) error) error {
	o, err := s3.GetObject(ctx, bucket, strings.TrimPrefix(key, "/"), minio.GetObjectOptions{})
	if err != nil {
		return err
	}
	defer o.Close()
	info, err := o.Stat()
	if err != nil {
		return err
	}
	return read(o, info.Size)
}

// backFromTheBucket is step 9: the chunkservers' space is freed, and the checkpoint
// is restored from the bucket.
func (d *demo) backFromTheBucket(ctx context.Context) error {
	d.cfg.Say("\n9. Everything is evicted, and %d ranks restore the second step from the bucket.", restoreRanks)
	before, err := d.held(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := d.moveRun(ctx, client.JobEvict); err != nil {
		return err
	}
	if err := d.untilFiles(ctx, "evicted", func(a client.Attr) bool { return a.Evicted() || a.Size() == 0 }); err != nil {
		return err
	}
	var after uint64
	err = until(ctx, "the chunkservers free the space", 10*poll, func(ctx context.Context) (ok bool, err error) {
		after, err = d.held(ctx)
		return float64(after) <= evictedPart*float64(before), err
	})
	if err != nil {
		return fmt.Errorf("%w: they hold %d of %d bytes", err, after, before)
	}
	wall := time.Since(start)
	d.cfg.Say("  the chunkservers held %.2f GiB and hold %.3f GiB, after %v", gib(int64(before)), gib(int64(after)), wall.Round(time.Millisecond))
	d.claim("9", "evicting frees the chunkservers' space", before > 0 && float64(after) <= evictedPart*float64(before),
		"%.2f GiB held before, %.3f GiB after, in %v", gib(int64(before)), gib(int64(after)), wall.Round(time.Millisecond))
	return d.restoreFromBucket(ctx)
}

// held is how many bytes the chunkservers hold, by their devices' reports.
func (d *demo) held(ctx context.Context) (uint64, error) {
	resp, err := rawclient.Of(d.client).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetCluster{GetCluster: &wire.GetCluster{}}})
	if err != nil {
		return 0, err
	}
	var used uint64
	for _, h := range resp.GetCluster().GetTopology().GetHosts() {
		for _, dev := range h.Devices {
			used += dev.Used
		}
	}
	return used, nil
}

func (d *demo) restoreFromBucket(ctx context.Context) error {
	r, err := d.restore(ctx, "restore-from-bucket")
	if err != nil {
		return err
	}
	d.cfg.Say("  %.2f GiB in %v (%.2f GB/s)\n  saved    %s\n  restored %s", gib(r.bytes), r.wall.Round(time.Millisecond), float64(r.bytes)/r.wall.Seconds()/1e9, d.digests[2], r.digest)
	d.claim("9", "3 ranks restore it from the bucket byte for byte", r.digest == d.digests[2],
		"digest %s, %v (%.2f GB/s)", r.digest, r.wall.Round(time.Millisecond), float64(r.bytes)/r.wall.Seconds()/1e9)
	return nil
}
