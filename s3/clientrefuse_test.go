package s3_test

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	"github.com/stretchr/testify/require"
)

// A client library that requests encryption or an unsupported storage class gets
// NotImplemented, in one part or several, and the object does not change.
func TestClientsThatAskForMoreAreRefused(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "askmore")
	kept := []byte("bytes that stay")
	put(t, c, b, "k", kept, minio.PutObjectOptions{})
	kms, err := encrypt.NewSSEKMS("key", nil)
	require.NoError(t, err)
	large := bytes.Repeat([]byte("x"), 6<<20)
	putWith := func(data []byte, o minio.PutObjectOptions) func() error {
		return func() error {
			_, err := c.Client.PutObject(t.Context(), b, "k", bytes.NewReader(data), int64(len(data)), o)
			return err
		}
	}
	for name, ask := range map[string]func() error{
		"SSE-S3":           putWith([]byte("new"), minio.PutObjectOptions{ServerSideEncryption: encrypt.NewSSE()}),
		"SSE-KMS":          putWith([]byte("new"), minio.PutObjectOptions{ServerSideEncryption: kms}),
		"SSE-S3 in parts":  putWith(large, minio.PutObjectOptions{ServerSideEncryption: encrypt.NewSSE(), PartSize: 5 << 20}),
		"storage class":    putWith([]byte("new"), minio.PutObjectOptions{StorageClass: "GLACIER"}),
		"a class in parts": putWith(large, minio.PutObjectOptions{StorageClass: "REDUCED_REDUNDANCY", PartSize: 5 << 20}),
		"copy with encryption": func() error {
			_, err := c.Client.CopyObject(t.Context(), minio.CopyDestOptions{Bucket: b, Object: "k", Encryption: encrypt.NewSSE(), ReplaceMetadata: true},
				minio.CopySrcOptions{Bucket: b, Object: "k"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := minio.ToErrorResponse(ask())
			require.Equal(t, "NotImplemented", got.Code)
			require.Equal(t, http.StatusNotImplemented, got.StatusCode)
			have, _ := get(t, c, b, "k", minio.GetObjectOptions{})
			require.Equal(t, string(kept), string(have))
		})
	}
}
