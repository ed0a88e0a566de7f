package s3_test

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/client/ckpt"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
)

// part is the file of a checkpoint's only rank.
const part = "rank-00000-of-00001.safetensors"

// verifies reads every byte of a run's checkpoint, as `ckpt verify` does.
func verifies(t *testing.T, path string, step uint64) {
	t.Helper()
	run, err := ckpt.OpenRun(t.Context(), shared.client.Client, path, ckpt.RunOptions{ReadOnly: true})
	require.NoError(t, err)
	defer run.Close(t.Context()) //nolint:errcheck // it reads
	k, err := run.Resolve(t.Context(), ckpt.ResolveOptions{Step: step, Exact: true})
	require.NoError(t, err)
	defer k.Close() //nolint:errcheck // it reads
	_, err = k.Verify(t.Context())
	require.NoError(t, err)
	data, err := k.ReadTensor(t.Context(), "step")
	require.NoError(t, err)
	require.Equal(t, incluster.StepBytes(step), data)
}

// TestACommittedStepCannotBeChangedThroughS3 makes every request that would change
// a committed checkpoint, by its own path and by the links of its run.
func TestACommittedStepCannotBeChangedThroughS3(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	ctx := t.Context()
	b := bucket(t, c, "sealed-steps")
	saver, err := shared.cluster.ClientAs(ctx, transport.Peer{Role: transport.RoleClient, Node: "trainer", Scope: served}, client.Config{})
	require.NoError(t, err)
	defer saver.Close() //nolint:errcheck // what it saved is checked
	require.NoError(t, saver.SaveSteps(ctx, "/"+b+"/r", 1))
	put(t, c, b, "mine", []byte("mine"), minio.PutObjectOptions{})
	small := func(key string) error {
		_, err := c.Client.PutObject(ctx, b, key, bytes.NewReader([]byte("x")), 1, minio.PutObjectOptions{DisableMultipart: true})
		return err
	}
	for _, dir := range []string{"r/attempt-1/step-1/", "r/latest/", "r/step-1/"} {
		for what, request := range map[string]func() error{
			"put over a part":  func() error { return small(dir + part) },
			"put of the index": func() error { return small(dir + ckpt.IndexName) },
			"put beside them":  func() error { return small(dir + "new") },
			"put below":        func() error { return small(dir + "new/new") },
			"put of a folder": func() error {
				_, err := c.Client.PutObject(ctx, b, dir+"folder/", bytes.NewReader(nil), 0, minio.PutObjectOptions{DisableMultipart: true})
				return err
			},
			"delete":           func() error { return c.RemoveObject(ctx, b, dir+part, minio.RemoveObjectOptions{}) },
			"delete the index": func() error { return c.RemoveObject(ctx, b, dir+ckpt.IndexName, minio.RemoveObjectOptions{}) },
			"copy over a part": func() error {
				_, err := c.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: b, Object: dir + part}, minio.CopySrcOptions{Bucket: b, Object: "mine"})
				return err
			},
			"replace the metadata": func() error {
				_, err := c.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: b, Object: dir + part, UserMetadata: map[string]string{"a": "b"}, ReplaceMetadata: true},
					minio.CopySrcOptions{Bucket: b, Object: dir + part})
				return err
			},
			"multipart upload": func() error {
				id, err := c.NewMultipartUpload(ctx, b, dir+part, minio.PutObjectOptions{})
				if err != nil {
					return err
				}
				p, err := c.PutObjectPart(ctx, b, dir+part, id, 1, bytes.NewReader([]byte("part")), 4, minio.PutObjectPartOptions{})
				if err == nil {
					_, err = c.CompleteMultipartUpload(ctx, b, dir+part, id, []minio.CompletePart{{PartNumber: 1, ETag: p.ETag}}, minio.PutObjectOptions{})
				}
				require.NoError(t, c.AbortMultipartUpload(ctx, b, dir+part, id))
				return err
			},
			"several deletes": func() error {
				objects := make(chan minio.ObjectInfo, 2)
				objects <- minio.ObjectInfo{Key: dir + part}
				objects <- minio.ObjectInfo{Key: dir + ckpt.IndexName}
				close(objects)
				var last error
				for e := range c.RemoveObjects(ctx, b, objects, minio.RemoveObjectsOptions{}) {
					last = e.Err
				}
				return last
			},
		} {
			if got := code(request()); got != "AccessDenied" {
				t.Errorf("%s, in %s: %q, want AccessDenied", what, dir, got)
			}
		}
	}
	// A folder is no object: its deletion succeeds, and does nothing.
	require.NoError(t, c.RemoveObject(ctx, b, "r/attempt-1/step-1/", minio.RemoveObjectOptions{}))
	verifies(t, "/"+b+"/r", 1)
	got, _ := get(t, c, b, "r/latest/"+part, minio.GetObjectOptions{})
	require.True(t, bytes.Contains(got, incluster.StepBytes(1)))
}

// TestRemovalOfAStepThroughS3: a recursive delete removes a checkpoint as a whole,
// and refuses to remove the last good one.
func TestRemovalOfAStepThroughS3(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	ctx := t.Context()
	b := bucket(t, c, "removed-steps")
	saver, err := shared.cluster.ClientAs(ctx, transport.Peer{Role: transport.RoleClient, Node: "trainer", Scope: served}, client.Config{})
	require.NoError(t, err)
	defer saver.Close() //nolint:errcheck // what it saved is checked
	require.NoError(t, saver.SaveSteps(ctx, "/"+b+"/r", 1, 2))
	removeAll := func(prefix string) (failed []string) {
		for e := range c.RemoveObjects(ctx, b, c.Client.ListObjects(ctx, b, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}), minio.RemoveObjectsOptions{}) {
			failed = append(failed, code(e.Err))
		}
		return failed
	}
	// agree checks that the list, the prefix and every part show the same of the
	// two steps.
	agree := func(there ...uint64) {
		t.Helper()
		run, err := saver.Stat(ctx, "/"+b+"/r")
		require.NoError(t, err)
		steps, err := ckpt.ListSteps(ctx, saver.Client, run.Inode(), false)
		require.NoError(t, err)
		var listed []uint64
		for _, s := range steps {
			listed = append(listed, s.Step)
		}
		require.ElementsMatch(t, there, listed)
		for step := range uint64(2) {
			var keys []string
			for o := range c.Client.ListObjects(ctx, b, minio.ListObjectsOptions{Prefix: fmt.Sprintf("r/attempt-1/step-%d/", step+1), Recursive: true}) {
				require.NoError(t, o.Err)
				keys = append(keys, path.Base(o.Key))
			}
			if !slices.Contains(there, step+1) {
				require.Empty(t, keys)
				continue
			}
			require.ElementsMatch(t, []string{ckpt.IndexName, part}, keys)
			verifies(t, "/"+b+"/r", step+1)
			got, _ := get(t, c, b, fmt.Sprintf("r/attempt-1/step-%d/%s", step+1, part), minio.GetObjectOptions{})
			require.True(t, bytes.Contains(got, incluster.StepBytes(step+1)))
		}
	}
	agree(1, 2)
	require.Empty(t, removeAll("r/attempt-1/step-2/"))
	agree(1)
	attr, err := saver.Stat(ctx, "/"+b+"/r/latest")
	require.NoError(t, err)
	require.NotZero(t, attr.Inode())
	failed := removeAll("r/attempt-1/step-1/")
	require.NotEmpty(t, failed)
	for _, code := range failed {
		require.Equal(t, "AccessDenied", code)
	}
	agree(1)
}
