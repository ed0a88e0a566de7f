"""What a Python program does with an S3 endpoint, by boto3.

Usage: s3_boto3.py ENDPOINT BUCKET SOURCE

Puts SOURCE in one request and in parts, reads it back whole and in ranges, lists,
copies, deletes, and looks at errors. The bucket's last state is left for the caller:
`single`, `parts` and `copies/parts`, each with SOURCE's bytes, and `many/0000` to
`many/0024`, each with its own name as its bytes. Any difference ends it with a
traceback.
"""

import hashlib
import pathlib
import sys

import boto3
import botocore
from boto3.s3.transfer import TransferConfig

endpoint, bucket, source = sys.argv[1:]
data = pathlib.Path(source).read_bytes()
digest = hashlib.sha256(data).hexdigest()
s3 = boto3.client("s3", endpoint_url=endpoint)


def equal(got, want, what):
    assert got == want, f"{what}: {got!r}, not {want!r}"


def digest_of(key):
    return hashlib.sha256(s3.get_object(Bucket=bucket, Key=key)["Body"].read()).hexdigest()


def fails(code, call, **args):
    try:
        call(**args)
    except botocore.exceptions.ClientError as e:
        equal(e.response["Error"]["Code"], code, "code")
    else:
        raise AssertionError(f"{call.__name__} of {args} did not fail with {code}")


s3.create_bucket(Bucket=bucket)
assert bucket in [b["Name"] for b in s3.list_buckets()["Buckets"]]

# One request, with what a program says of the object.
s3.put_object(Bucket=bucket, Key="single", Body=data, ContentType="application/x-tensors", Metadata={"step": "7"})
head = s3.head_object(Bucket=bucket, Key="single")
equal(head["ContentLength"], len(data), "length")
equal(head["ContentType"], "application/x-tensors", "type")
equal(head["Metadata"], {"step": "7"}, "metadata")
equal(digest_of("single"), digest, "digest")
equal(s3.get_object(Bucket=bucket, Key="single", Range="bytes=1000-70000")["Body"].read(), data[1000:70001], "range")
equal(s3.get_object(Bucket=bucket, Key="single", Range="bytes=-77")["Body"].read(), data[-77:], "last bytes")

# Parts, several at once, as upload_file and download_file do it.
config = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20, max_concurrency=4)
s3.upload_file(source, bucket, "parts", Config=config)
equal(digest_of("parts"), digest, "digest of parts")
back = source + ".back"
s3.download_file(bucket, "parts", back, Config=config)
equal(hashlib.sha256(pathlib.Path(back).read_bytes()).hexdigest(), digest, "digest of the download")

# An aborted upload leaves nothing.
upload = s3.create_multipart_upload(Bucket=bucket, Key="given-up")["UploadId"]
s3.upload_part(Bucket=bucket, Key="given-up", UploadId=upload, PartNumber=1, Body=data[: 5 << 20])
equal([u["Key"] for u in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]], ["given-up"], "uploads")
s3.abort_multipart_upload(Bucket=bucket, Key="given-up", UploadId=upload)
assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
fails("NoSuchKey", s3.get_object, Bucket=bucket, Key="given-up")

# What the endpoint does not keep it refuses, and changes nothing.
for refused in (
    {"ServerSideEncryption": "AES256"},
    {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0" * 32},
    {"StorageClass": "GLACIER"},
    {"WriteOffsetBytes": 1},
    {"ACL": "public-read"},
):
    fails("NotImplemented", s3.put_object, Bucket=bucket, Key="single", Body=b"x", **refused)
fails("NotImplemented", s3.create_multipart_upload, Bucket=bucket, Key="single", ServerSideEncryption="aws:kms")
fails("NotImplemented", s3.put_object_acl, Bucket=bucket, Key="single", ACL="public-read")
etag = s3.head_object(Bucket=bucket, Key="single")["ETag"]
fails("PreconditionFailed", s3.put_object, Bucket=bucket, Key="single", Body=b"x", IfNoneMatch="*")
fails("PreconditionFailed", s3.put_object, Bucket=bucket, Key="single", Body=b"x", IfMatch='"0"')
s3.put_object(Bucket=bucket, Key="single", Body=data, IfMatch=etag)
equal(digest_of("single"), digest, "digest of what was refused to change")

# Copies, and deletions one by one and together.
s3.copy_object(Bucket=bucket, Key="copies/parts", CopySource={"Bucket": bucket, "Key": "parts"})
s3.copy_object(Bucket=bucket, Key="copies/single", CopySource={"Bucket": bucket, "Key": "single"})
equal(digest_of("copies/single"), digest, "digest of a copy")
s3.delete_object(Bucket=bucket, Key="copies/single")
fails("404", s3.head_object, Bucket=bucket, Key="copies/single")

# A listing in pages, flat and by directories.
names = [f"many/{i:04}" for i in range(40)]
for name in names:
    s3.put_object(Bucket=bucket, Key=name, Body=name.encode())
pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="many/", PaginationConfig={"PageSize": 7})
equal([o["Key"] for page in pages for o in page["Contents"]], names, "listing in pages")
top = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
equal([o["Key"] for o in top["Contents"]], ["parts", "single"], "files of the top")
equal([p["Prefix"] for p in top["CommonPrefixes"]], ["copies/", "many/"], "directories of the top")
gone = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": n} for n in names[25:]]})
equal(len(gone["Deleted"]), 15, "deleted together")

# Errors a program looks at.
fails("NoSuchKey", s3.get_object, Bucket=bucket, Key="nothing")
fails("NoSuchBucket", s3.list_objects_v2, Bucket=bucket + "-not")
fails("BucketNotEmpty", s3.delete_bucket, Bucket=bucket)
fails("PreconditionFailed", s3.put_object, Bucket=bucket, Key="single", Body=b"other", IfNoneMatch="*")
key = boto3.Session().get_credentials().access_key
wrong = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id=key, aws_secret_access_key="wrong")
fails("SignatureDoesNotMatch", wrong.get_object, Bucket=bucket, Key="single")
print(digest)
