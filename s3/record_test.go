package s3_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/s3"
)

// The stored form equals the golden one, and decodes to the same record.
func TestGoldenRecord(t *testing.T) {
	golden, err := os.ReadFile("testdata/record.json")
	require.NoError(t, err)
	r, err := s3.DecodeRecord(golden)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"colour": "blue"}, r.Metadata)
	require.EqualValues(t, 72057594037927938, r.Generation)
	again, err := s3.EncodeRecord(r)
	require.NoError(t, err)
	require.Equal(t, string(golden), string(again)+"\n")

	_, err = s3.DecodeRecord([]byte(`{"version":2}`))
	require.ErrorIs(t, err, moraine.NewerFormat)
	_, err = s3.DecodeRecord([]byte(`{`))
	require.ErrorIs(t, err, moraine.Corrupt)
}

// The record stored with an object equals the golden record.
func TestStoredRecord(t *testing.T) {
	c := dial(t, accessKey, secretKey)
	b := bucket(t, c, "record")
	put(t, c, b, "k", []byte("x"), putOptions("text/x-test"))
	attr, err := shared.client.Stat(t.Context(), "/"+b+"/k")
	require.NoError(t, err)
	data, err := shared.client.Xattrs().Get(t.Context(), attr.Inode(), s3.RecordXattr)
	require.NoError(t, err)
	require.JSONEq(t, `{"version":1,"content_type":"text/x-test"}`, string(data))
}

// The decoder survives any bytes, and can encode what it accepts.
func FuzzDecodeRecord(f *testing.F) {
	golden, err := os.ReadFile("testdata/record.json")
	require.NoError(f, err)
	f.Add(golden)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := s3.DecodeRecord(data)
		if err != nil {
			return
		}
		out, err := s3.EncodeRecord(r)
		if err != nil {
			require.ErrorIs(t, err, moraine.TooLarge)
			return
		}
		again, err := s3.DecodeRecord(out)
		require.NoError(t, err)
		one, err := json.Marshal(r)
		require.NoError(t, err)
		two, err := json.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(one), string(two))
	})
}
