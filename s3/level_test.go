package s3_test

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/s3"
)

// putAt puts an object, or a part, with a header for the level of the answer; the
// minio client sends none of our headers by itself.
func putAt(t *testing.T, c *minio.Core, bucket, key, level string, data []byte, params url.Values) (status int, etag string) {
	t.Helper()
	header := http.Header{s3.AckHeader: {level}}
	u, err := c.PresignHeader(t.Context(), http.MethodPut, bucket, key, time.Minute, params, header)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, u.String(), bytes.NewReader(data))
	require.NoError(t, err)
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header.Get("ETag")
}

func levelOf(t *testing.T, bucket, key string) moraine.Level {
	t.Helper()
	a, err := shared.client.Stat(t.Context(), "/"+bucket+"/"+key)
	require.NoError(t, err)
	return a.Level()
}

// TestLevelOfAPut: an endpoint answers a PUT, a copy and the completion of an
// upload when the bytes are on their devices. This holds also if they were put at
// memory before. A request for memory is answered while no device has a byte.
func TestLevelOfAPut(t *testing.T) {
	hold := &shared.devices
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "levels")
	data := bytesOf(seed(t), 1<<20+5)
	status, _ := putAt(t, c, b, "wrong", "object", data, nil)
	require.Equal(t, http.StatusBadRequest, status)

	upload := func(key string) (id string, parts []minio.CompletePart) {
		id, err := c.NewMultipartUpload(t.Context(), b, key, minio.PutObjectOptions{})
		require.NoError(t, err)
		status, etag := putAt(t, c, b, key, "memory", data, url.Values{"partNumber": {"1"}, "uploadId": {id}})
		require.Equal(t, http.StatusOK, status)
		return id, []minio.CompletePart{{PartNumber: 1, ETag: etag}}
	}
	hold.Begin()
	defer hold.End()
	status, _ = putAt(t, c, b, "fast", "memory", data, nil)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, moraine.Memory, levelOf(t, b, "fast"))
	got, _ := get(t, c, b, "fast", minio.GetObjectOptions{})
	require.True(t, bytes.Equal(data, got))

	id, parts := upload("parts")
	calls := map[string]func() error{
		"safe": func() error {
			_, err := c.Client.PutObject(t.Context(), b, "safe", bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{DisableMultipart: true})
			return err
		},
		"copy": func() error {
			_, err := c.Client.CopyObject(t.Context(), minio.CopyDestOptions{Bucket: b, Object: "copy"}, minio.CopySrcOptions{Bucket: b, Object: "fast"})
			return err
		},
		"parts": func() error {
			_, err := c.CompleteMultipartUpload(t.Context(), b, "parts", id, parts, minio.PutObjectOptions{})
			return err
		},
	}
	var running sync.WaitGroup
	errs, early := sync.Map{}, sync.Map{}
	for name, call := range calls {
		running.Go(func() {
			errs.Store(name, call())
			early.Store(name, hold.On())
		})
	}
	time.Sleep(500 * time.Millisecond) // catches an early return
	require.True(t, hold.On())
	hold.End()
	running.Wait()
	for name := range calls {
		err, _ := errs.Load(name)
		require.Nil(t, err, name)
		was, _ := early.Load(name)
		require.Equal(t, false, was, "%s was answered before the devices had the bytes", name)
		require.Equal(t, moraine.NVMe, levelOf(t, b, name), name)
		got, _ := get(t, c, b, name, minio.GetObjectOptions{})
		require.True(t, bytes.Equal(data, got), name)
	}
}

// TestLevelOfAPutThatMemoryDoesNotProtect: a commit at level memory reports that it
// protects from no failure. A PUT, also of a part, that requests memory is then
// answered when the bytes are on their devices.
func TestLevelOfAPutThatMemoryDoesNotProtect(t *testing.T) {
	hold := &shared.devices
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "bare")
	id, err := c.NewMultipartUpload(t.Context(), b, "parts", minio.PutObjectOptions{})
	require.NoError(t, err)
	data := bytesOf(seed(t), 1<<20+5)
	shared.bare.Store(true)
	defer shared.bare.Store(false)
	for key, params := range map[string]url.Values{"object": nil, "parts": {"partNumber": {"1"}, "uploadId": {id}}} {
		hold.Begin()
		ended := make(chan bool, 1)
		go func() {
			status, _ := putAt(t, c, b, key, "memory", data, params)
			ended <- assert.Equal(t, http.StatusOK, status) && hold.On()
		}()
		time.Sleep(300 * time.Millisecond) // catches an early answer
		require.True(t, hold.On())
		hold.End()
		require.False(t, <-ended, "%s was answered before the devices had the bytes", key)
	}
	require.Equal(t, moraine.NVMe, levelOf(t, b, "object"))
}
