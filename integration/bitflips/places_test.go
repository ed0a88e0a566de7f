package bitflips_test

// askedAgain is the log line of a client that received bytes that do not match
// their checksum.
const askedAgain = "chunk checksum mismatch on arrival; the client reads the chunk again"

// places lists where bytes are between a writer and a reader.
var places = []place{
	// The bytes of a file.
	{where: "a writer's buffer after the sum", flip: "in that memory, as one chunk is put", seen: "the server refuses the put (puts, corrupt); the client logs it, the write fails", counted: (*world).refused, logs: "bytes changed in memory after the client computed their checksum", try: flipWriter},
	{where: "a handle's buffer after the sum", flip: "in that memory, as one chunk is put", seen: "the server refuses the put (puts, corrupt); the client logs it, Flush fails", counted: (*world).refused, logs: "bytes changed in memory after the client computed their checksum", try: flipHandle},
	{where: "a chunk on its way to a server", flip: "the first put of one chunk", seen: "the server refuses the put (puts, corrupt)", heals: "the client puts it again", counted: (*world).refused, try: flipPut},
	{where: "a chunk on its way to a reader", flip: "the first payload of a get", seen: "the client asks again (chunk_errors, get, corrupt), and logs it", heals: "by that", counted: (*world).gotWrong, logs: askedAgain, try: flipGet},
	{where: "a chunk that a repair reads", flip: "the first payload of a get between chunkservers", seen: "the mover asks again, or reads another chunk (chunk_errors, get, corrupt), and logs it", heals: "by that", counted: (*world).peersGotWrong, logs: askedAgain, try: flipRepairGet},
	{where: "a mover's buffer, or what it puts", flip: "the first put between chunkservers", seen: "the server refuses the put (puts, corrupt)", heals: "the repair is made again", counted: (*world).refused, try: flipRepairPut},
	{where: "a chunk on disk, its data", flip: "in the segment", seen: "a read (gets, corrupt) or a scrub (scrub_bad_chunks) counts it", heals: "repair", pages: "segment", counted: (*world).rotten, try: flipData},
	{where: "a chunk on disk, its head and block sums", flip: "in the segment", seen: "a read (gets, corrupt) or a scrub (scrub_bad_chunks) counts it", heals: "repair", pages: "segment", counted: (*world).rotten, try: flipHead},
	{where: "parity before it is summed", flip: "the put and the commit have the sum of the wrong parity", seen: "a scrub counts it (scrub_bad_chunks, parity)", heals: "it is encoded again", pages: "stripe", counted: (*world).wrongParity, try: flipParity},
	{where: "a writer's buffer between two encodings", flip: "in that memory, before a lesser scheme", seen: "the write fails", test: "client/internal/stripeio.TestBytesThatChangeAreNotSummedAgain"},
	{where: "parity that is encoded again", flip: "a coder that computes wrong", seen: "the repair fails: data chunk 0 does not come back", test: "client/internal/stripeio.TestABadCoreReplacesNoParity"},
	{where: "frames, on any connection and in each mode", flip: "a proxy changes a byte", seen: "the connection ends, or the sum of the payload differs", heals: "the request is made again", pages: "frame", test: "transport.TestBitsChangeOnTheWay"},
	{where: "the head of a frame", flip: "each bit", seen: "the connection ends", pages: "frame", test: "transport.TestHeaderBitFlips"},
	{where: "a chunk in a chunkserver's memory", flip: "in the arena of a running server", seen: "the reader asks again (chunk_errors, get, corrupt) and logs it, the server drops it", heals: "from the device", counted: (*world).gotWrong, logs: askedAgain, try: flipArena},
	{where: "such a chunk, and ranges of it, written or not", flip: "in the arena", seen: "the reader asks again, the server drops it", heals: "from the device", test: "chunkserver.TestMemoryThatRotsShows"},
	{where: "a chunk on its way from memory to the device", flip: "in the arena, before it is written", seen: "the checksums of its arrival are written with it: a reader detects it", heals: "repair", test: "tiers/mem.TestDirtyMemoryThatRotsIsNotServed"},
	{where: "the index of a device", flip: "a random bit of a random file of it", seen: "the index is made again", heals: "from the segments", pages: "device", alone: flipIndex},
	{where: "a segment, with the index and without", flip: "up to three bits anywhere", seen: "Corrupt", heals: "repair", pages: "segment", test: "tiers/disk.TestFlippedBitsAreNeverServed"},
	{where: "the identity of a device", flip: "a bit on disk", seen: "the device does not open (Corrupt)", pages: "device", test: "tiers/disk.TestOpenRefusesDamagedAndNewerIdentities"},
	{where: "how far a scrub is", flip: "the decoder's fuzz test", seen: "the pass begins again", heals: "by that", pages: "scrub", test: "chunkserver.FuzzScrubFile"},
	// Objects.
	{where: "a piece of an object in a chunkserver's memory", flip: "in the cache of a running server", seen: "piece_rotten", heals: "from the bucket", counted: (*world).rottenPieces, try: flipPiece},
	{where: "such a piece, and ranges of it", flip: "in the cache", seen: "piece_rotten, a log line", heals: "from the bucket", test: "chunkserver.TestARottenPieceIsFound"},
	{where: "an object in the bucket, or a part on its way there", flip: "the store changes what it was given", seen: "the flush fails; nothing is evicted to it", test: "mover.TestFlippedBitsAreFound"},
	{where: "a copy of an object", flip: "the store changes it", seen: "the copy is refused", test: "mover.TestFlippedBitsOfCopiesAreFound"},
	{where: "an object after its file was evicted, with a client that reads it", flip: "in the file of the local bucket", seen: "the read fails (piece_errors)", pages: "local-object", counted: (*world).failedPieces, try: flipObject},
	{where: "an object after its file was evicted", flip: "in the bucket", seen: "the read fails (Corrupt)", test: "chunkserver.TestReadsOfALostObjectFail"},
	{where: "a file of the local bucket", flip: "on disk", seen: "inspect names it", pages: "local-object", test: "tiers/object/localstore.TestInspectFindsDamage"},
	{where: "the record of a file of the local bucket", flip: "on disk", seen: "its object alone is not there", pages: "local-object", test: "tiers/object/localstore.TestADamagedRecordCostsItsObjectAlone"},
	{where: "the tag of an object", flip: "each bit, on its way to the bucket", seen: "the flush fails; the object is not recorded", heals: "it is flushed again, unless the tag says another cluster or file: that object is kept, and the flush refused", pages: "object-keys", test: "mover.TestFlippedBitsOfTheTagAreFound"},
	{where: "a file of the node's cache", flip: "in its header, sums and blocks", seen: "the cache drops it (node_cache_errors, damaged), and logs it", heals: "from the cluster", pages: "node-cache", test: "client/internal/nodecache.TestDamageIsAMiss"},
	// Checkpoints.
	{where: "the staging memory of a checkpoint after the sum", flip: "before the seal", seen: "the save fails", test: "client/ckpt.TestStagingThatChangedIsNotSealed"},
	{where: "a slot of an agent", flip: "between the trainer's copy and the write to the cluster", seen: "the part fails (Corrupt); no step has it", pages: "agent", test: "agent.TestASumThatDoesNotFitEndsThePart"},
	{where: "a slot of an agent", flip: "before a restart reads it", seen: "the bytes come from the cluster", pages: "agent", test: "agent.TestARestartRestoresFromTheMemoryOfTheNode"},
	{where: "a part of a checkpoint, its header too", flip: "each byte", seen: "ckpt verify names it", pages: "safetensors-part", test: "client/ckpt.TestVerifyFindsEveryFlippedByte"},
	{where: "the index of a checkpoint", flip: "each byte", seen: "it does not open", pages: "checkpoint-index", test: "client/ckpt.TestIndexFindsEveryFlippedByte"},
	// The metadata.
	{where: "a value of the metadata in a server's memory", flip: "what was committed last, records, pebble's table, its cache", seen: "the server ends and names the key", heals: "from its disk and log", pages: "metadata-keys metadata-records metadata-objects metastore s3-record", test: "metadata/raftstore.TestAValueThatChangesInMemoryIsNotServed"},
	{where: "such a value, with a client that reads it", flip: "in the memory of the leader", seen: "that server ends; another one answers", heals: "from its disk and log", test: "integration/bitflips.TestAValueThatChangesInTheLeadersMemoryIsNotServed"},
	{where: "a value of the metadata that was computed wrong", flip: "in the state of one server", seen: "the sums differ; that server ends", test: "metadata.TestABitThatChangesInOneStateEndsItsServer"},
	{where: "the state of a metadata server on disk", flip: "in a table", seen: "the server ends (checksum)", heals: "the others go on", pages: "metastore", test: "metadata/raftstore.TestFlippedBitOfTheState"},
	{where: "the log's list, identity and other small files", flip: "each byte", seen: "Corrupt: the server does not start", pages: "metastore", test: "metadata/raftstore.TestMetaRefusesDamage"},
	{where: "an entry of the log on disk", flip: "in a segment", seen: "the leader ends, and sends nothing of it", heals: "the others go on", pages: "metastore log-entry", test: "metadata.TestALeaderThatMeetsAFlippedBitOfItsLogEnds"},
	{where: "the log between metadata servers, its entries and snapshots", flip: "a proxy changes a bit of the stream, in each mode but insecure", seen: "the connection ends (TLS); no byte is taken that was not sent", heals: "it is sent again", pages: "frame log-entry", test: "transport.TestBitsOfTheLogThatChangeOnTheWay"},
	{where: "an entry of the log, in memory", flip: "a random bit of its bytes", seen: "it does not decode (Corrupt)", pages: "log-entry", alone: flipEntry},
	{where: "a snapshot that is sent, or lies on disk", flip: "in the stream", seen: "it is refused", heals: "it is sent again", pages: "snapshot", test: "metadata/raftstore.TestStreamRefusesDamage"},
	{where: "a snapshot that was received", flip: "on disk, before it is published", seen: "it is refused", heals: "it is sent again", pages: "snapshot", test: "metadata/raftstore.TestFlippedBitOfAReceivedSnapshot"},
	{where: "a backup of the metadata", flip: "a random bit of the file", seen: "inspect and restore refuse it (Corrupt)", pages: "snapshot", fails: true, try: flipBackup},
	// Identities.
	{where: "the file of the cluster's secret", flip: "a random bit", seen: "the server does not start (Corrupt), and says how it gets it again", heals: "from another server", pages: "metastore", alone: flipSecret},
	{where: "certificate, key and authority", flip: "a random bit of a random one of the files", seen: "they do not load, or the handshake fails", pages: "certificate", alone: flipCertificate},
	{where: "a session token", flip: "a random bit", seen: "Unauthenticated", pages: "frame", alone: flipToken},
	{where: "a capability", flip: "each bit", seen: "PermissionDenied", pages: "frame", test: "transport/capability.TestFlippedBitsOfACapabilityAreRefused"},
}
