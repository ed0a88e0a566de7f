// Package bucketflags has the flags that say how to reach an S3 bucket. Servers and commands share
// them.
//
// One path through it: a command calls AddFlags -> Config turns the flags and the AWS_* variables
// into the settings of package tiers/object.
package bucketflags

import (
	"cmp"
	"os"

	"github.com/morainefs/moraine/tiers/object"
	"github.com/spf13/pflag"
)

// Flags say how to reach the store of a bucket. Credentials come from the usual AWS_* variables,
// unless Keys has some.
type Flags struct {
	endpoint, region string
	virtualHost      bool
	noChecksums      bool
	Keys             object.Keys
}

// AddFlags adds the flags to a command's.
func (o *Flags) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.endpoint, "bucket-endpoint", "", "URL of the bucket's store (default: AWS_ENDPOINT_URL, else AWS S3)")
	f.StringVar(&o.region, "bucket-region", "", "region of the bucket (default: AWS_REGION, else us-east-1)")
	f.BoolVar(&o.virtualHost, "bucket-virtual-host", false, "name the bucket in the host name instead "+
		"of the path (requests to AWS always do)")
	f.BoolVar(&o.noChecksums, "bucket-no-checksums", false, "send no CRC32C with uploads, for stores that refuse it")
}

// Endpoint sets the URL of the store, as --bucket-endpoint does.
func (o *Flags) Endpoint(url string) { o.endpoint = url }

// Config returns the settings of the bucket at url, s3://BUCKET/PREFIX.
func (o *Flags) Config(url string) (cfg object.Config, err error) {
	cfg = object.Config{VirtualHost: o.virtualHost, NoChecksums: o.noChecksums,
		Endpoint: cmp.Or(o.endpoint, os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL")),
		Region:   cmp.Or(o.region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")),
	}
	if cfg.Bucket, cfg.Prefix, err = object.ParseURL(url); err != nil {
		return cfg, err
	}
	cfg.AccessKey, cfg.SecretKey = o.Keys.Access, o.Keys.Secret
	if cfg.AccessKey == "" {
		cfg.AccessKey, cfg.SecretKey, cfg.SessionToken = os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN")
	}
	return cfg, nil
}
