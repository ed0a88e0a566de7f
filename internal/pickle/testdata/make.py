# Writes what torch.distributed.checkpoint writes as .metadata, with stand-in classes of the same names.
import pickle, sys, types, dataclasses, enum, os
def mod(n):
    m=types.ModuleType(n); sys.modules[n]=m; return m
for n in ("torch","torch.distributed","torch.distributed.checkpoint","torch.distributed.checkpoint.metadata","torch.distributed.checkpoint.filesystem","torch.serialization"): mod(n)
M=sys.modules["torch.distributed.checkpoint.metadata"]; F=sys.modules["torch.distributed.checkpoint.filesystem"]; T=sys.modules["torch"]
def cls(m,name,fields,frozen=False):
    c=dataclasses.make_dataclass(name,[(f,object,dataclasses.field(default=None)) for f in fields],frozen=frozen)
    c.__module__=m.__name__; setattr(m,name,c); return c
Size=type("Size",(tuple,),{"__module__":"torch","__reduce__":lambda s:(Size,(tuple(s),))}); T.Size=Size
class dtype:
    def __init__(s,n): s.n=n
    def __reduce__(s): return s.n
dtype.__module__="torch"; dtype.__qualname__="dtype"; T.dtype=dtype; T.float32=dtype("float32")
class _MEM(enum.Enum):
    TORCH_CONTIGUOUS_FORMAT=0
_MEM.__name__=_MEM.__qualname__="_MEM_FORMAT_ENCODING"; _MEM.__module__=M.__name__; M._MEM_FORMAT_ENCODING=_MEM
Metadata=cls(M,"Metadata",["state_dict_metadata","planner_data","storage_data","storage_meta","version"])
MetadataIndex=cls(M,"MetadataIndex",["fqn","offset","index"],True)
TSM=cls(M,"TensorStorageMetadata",["properties","size","chunks"])
BSM=cls(M,"BytesStorageMetadata",[])
CSM=cls(M,"ChunkStorageMetadata",["offsets","sizes"])
TP=cls(M,"TensorProperties",["dtype","layout","requires_grad","memory_format","pin_memory"])
SM=cls(M,"StorageMeta",["checkpoint_id","save_id","load_id","modules"])
SI=cls(F,"_StorageInfo",["relative_path","offset","length","transform_descriptors"])
def layout(name): pass
layout.__module__="torch.serialization"; layout.__qualname__=layout.__name__="_get_layout"; sys.modules["torch.serialization"]._get_layout=layout
class Lay:
    def __reduce__(s): return (layout,("torch.strided",))
def tp(): 
    return TP(T.float32,Lay(),False,_MEM.TORCH_CONTIGUOUS_FORMAT,False)
sdm={}; sd={}
for r in range(2):
    for i in range(2):
        fqn=f"model.layers.{i}.weight"
        ch=CSM(Size((r*4,0)),Size((4,8)))
        sdm.setdefault(fqn,TSM(tp(),Size((8,8)),[])).chunks.append(ch)
        sd[MetadataIndex(fqn,Size((r*4,0)),r)]=SI(f"__{r}_0.distcp",i*400,400)
sdm["step"]=BSM(); sd[MetadataIndex("step")]=SI("__0_0.distcp",800,200)
md=Metadata(sdm,{"model.layers.0.weight":("model","layers",0,"weight"),"step":("step",)},sd,SM("/ckpt/step-100","a-b",None,[]),None)
out=sys.argv[1]
for p in (0,2,4,5):
    open(os.path.join(out,f"dcp.metadata.{p}"),"wb").write(pickle.dumps(md,protocol=p))
# protocol 4 as the pickle of a plain file
open(os.path.join(out,"plain.4"),"wb").write(pickle.dumps([None,True,False,1,-1,255,65536,1<<40,-(1<<40),1.5,"é",b"ab",(1,2,3,4),{"k":{1,2}},frozenset([3])],protocol=4))
